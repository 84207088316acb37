"""Hosts, rules, addresses and shapes of a network, without one."""

import asyncio
import random
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.contracts.network import NetworkAccess
from tiltyard.sandbox import InvalidNetwork, Network, NetworkRefused, Shape
from tiltyard.sandbox.network import Permission
from tiltyard.sandbox.network.address import _is_this_machine, why_refused
from tiltyard.sandbox.network.host import OddHost, canonical, split
from tiltyard.sandbox.network.rule import Rule
from tiltyard.sandbox.network.shape import Bucket, Luck, Reset


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("Bücher.de", "xn--bcher-kva.de"),
        ("ｅｘａｍｐｌｅ。org", "example.org"),
        ("_dmarc.example.org", "_dmarc.example.org"),
        ("127.0.0.1", "127.0.0.1"),
        ("[0:0::1]", "::1"),
        ("[2001:DB8::1]", "2001:db8::1"),
    ],
)
def test_a_host_has_one_spelling(written: str, meant: str) -> None:
    assert canonical(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            ".",
            "a..b",
            "a b",
            "a/b",
            "a@b",
            "a%2eb",
            "-a",
            "a-",
            "0x7f.1",
            "127.1",
            "0177.0.0.1",
            "1",
            "a.1",
        ),
        *(
            "a.0x1f",
            "[::1",
            "[::1%1]",
            "[1]",
            "::1",
            ".ⅷ.",
            "xn--a",
            "a" * 64,
            "a." * 127 + "aaa",
            "a\n",
            "a\0b",
        ),
    ],
)
def test_an_odd_host_is_none(written: str) -> None:
    with pytest.raises(OddHost):
        canonical(written)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_a_canonical_host_is_its_own_spelling(text: str) -> None:
    try:
        once = canonical(text)
    except OddHost:
        return
    again = canonical(f"[{once}]" if ":" in once else once)
    assert again == once
    assert once.isascii()
    assert once == once.lower()


@pytest.mark.parametrize("port", ["", "0", "080", "+80", "65536", "8_0", "٨٠", "80 ", "-1", "http", "0x50"])
def test_an_odd_port_is_none(port: str) -> None:
    with pytest.raises(OddHost):
        split(f"example.org:{port}", 80)


def test_a_port_is_needed_where_none_is_usual() -> None:
    assert split("example.org", 80) == ("example.org", 80)
    assert split("[::1]:443") == ("::1", 443)
    with pytest.raises(OddHost, match="no port"):
        split("example.org")


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("example.org:443", "example.org", 443, True),
        ("Example.ORG.:443", "example.org", 443, True),
        ("example.org:443", "example.org", 80, False),
        ("example.org:443", "www.example.org", 443, False),
        ("*.example.org:443", "www.example.org", 443, True),
        ("*.example.org:443", "a.b.example.org", 443, True),
        ("*.example.org:443", "example.org", 443, False),
        ("*.example.org:443", "evilexample.org", 443, False),
        ("*:443", "example.org", 443, True),
        ("*:443", "93.184.216.34", 443, False),
        ("*:443", "2606:4700::1111", 443, False),
        ("93.184.216.34:443", "93.184.216.34", 443, True),
        ("[2606:4700::1111]:443", "2606:4700::1111", 443, True),
    ],
)
def test_a_rule_allows_what_it_names(rule: str, host: str, port: int, allowed: bool) -> None:
    assert Rule.parse(rule).allows(host, port) is allowed


@pytest.mark.parametrize(
    "rule",
    [
        *("", "*", "example.org", "*.org:443", "*.1.2.3.4:80", "*example.org:80", "a.*.org:80", "*.*.org:80"),
        *("https://a.org:443", "*.[::1]:80", "example.org:*", "example.org:0", "user@example.org:80"),
    ],
)
def test_a_rule_that_means_two_things_is_refused(rule: str) -> None:
    with pytest.raises(InvalidNetwork, match="rule"):
        Network(allow=[rule])


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "100.128.0.1", "172.32.0.1", "192.0.1.1", "2606:4700:4700::1111", "2a00:1450::1"],
)
def test_public_addresses_are_fit(address: str) -> None:
    assert why_refused(ip_address(address)) == ""


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_whatever_python_calls_not_global_is_refused(number: int) -> None:
    address = ip_address(number)
    if not address.is_global or address.is_multicast:
        assert why_refused(address)


@settings(deadline=None)
@given(st.integers(0, 2**128 - 1))
def test_no_address_within_an_address_is_fit(number: int) -> None:
    address = ip_address(number >> 3) if number % 2 else ip_address(number)
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    if address.version == 6 and (inner or getattr(address, "teredo", None) or not address.is_global):
        assert why_refused(address)


def test_an_opened_range_opens_itself_alone() -> None:
    opened = [ip_network("10.2.0.0/16"), ip_network("169.254.0.0/16")]
    assert why_refused(ip_address("10.2.3.4"), opened) == ""
    assert why_refused(ip_address("10.3.0.1"), opened)
    assert why_refused(ip_address("::ffff:10.2.3.4"), opened)
    assert "metadata" in why_refused(ip_address("169.254.169.254"), opened)


def test_this_machines_own_addresses_are_known_and_others_are_not_taken_for_them() -> None:
    assert _is_this_machine(ip_address("127.0.0.1"))
    assert not _is_this_machine(ip_address("8.8.8.8"))


@pytest.mark.parametrize(
    "options",
    [
        *({"allow": "example.org:443"}, {"private": ["10.2.0.1/16"]}, {"private": ["x"]}, {"port": 80}),
        *({"connections": 0}, {"idle_seconds": float("nan")}, {"connection_bytes": 0}),
    ],
)
def test_a_network_without_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidNetwork):
        Network(**{"allow": ["example.org:443"], **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"latency_ms": -1.0}, {"kib_per_second": float("nan")}])
def test_a_shape_without_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidNetwork, match=next(iter(options))):
        Shape(**options)  # type: ignore[arg-type]


def resets(seed: int, name: str) -> list[bool]:
    async def meet() -> list[bool]:
        luck = Luck(Shape(resets_per_mib=16, seed=seed), name)
        met = []
        for _ in range(400):
            try:
                await luck.meet(16 << 10)
                met.append(False)
            except Reset:
                met.append(True)
        return met

    return asyncio.run(meet())


def test_luck_is_the_same_for_the_same_seed_and_connection() -> None:
    assert resets(1, "1 up") == resets(1, "1 up")
    assert resets(1, "1 up") != resets(1, "2 up")
    assert resets(1, "1 up") != resets(2, "1 up")


def test_resets_come_as_often_as_was_asked() -> None:
    met = resets(5, "1 up")
    assert 0.15 < sum(met) / len(met) < 0.30  # 1 - exp(-16 / 64) is 0.22


def test_a_bucket_gives_no_more_than_its_rate() -> None:
    async def drain() -> float:
        loop = asyncio.get_running_loop()
        bucket, began = Bucket(1000.0, burst=10.0), loop.time()
        shares = [random.Random(0).randint(1, 9) for _ in range(20)]
        await asyncio.gather(*(bucket.take(share) for share in shares))
        return (loop.time() - began) - (sum(shares) - 10) / 1000

    assert asyncio.run(drain()) >= -0.001


@pytest.mark.parametrize(
    ("mine", "asked", "covered"),
    [
        ("example.org:443", "Example.org.:443", True),
        ("example.org:443", "example.org:80", False),
        ("example.org:443", "a.example.org:443", False),
        ("*.example.org:443", "a.example.org:443", True),
        ("*.example.org:443", "*.a.example.org:443", True),
        ("*.example.org:443", "*.example.org:443", True),
        ("*.example.org:443", "example.org:443", False),
        ("*.a.example.org:443", "*.example.org:443", False),
        ("*.example.org:443", "*:443", False),
        ("*:443", "*.example.org:443", True),
        ("*:443", "*:443", True),
        ("*:443", "192.0.2.1:443", False),
        ("192.0.2.1:443", "192.0.2.1:443", True),
    ],
)
def test_a_deployments_rule_covers_what_asks_for_no_more(mine: str, asked: str, covered: bool) -> None:
    permission = Permission.parse([mine])
    if covered:
        assert permission.grant(NetworkAccess(allow=(asked,))).rules == (Rule.parse(asked),)
    else:
        with pytest.raises(NetworkRefused, match="TILTYARD_NETWORK_ALLOW"):
            permission.grant(NetworkAccess(allow=(asked,)))


def test_a_deployment_that_names_nothing_grants_nothing() -> None:
    with pytest.raises(NetworkRefused, match="but for no host"):
        Permission().grant(NetworkAccess(allow=("example.org:443",)))
