"""Attacks on where the way out leads: every bypass is tried from a box, against real servers beside the allowed one."""

# ruff: noqa: E501  (attack programs read better unbroken)

from ast import literal_eval
from ipaddress import ip_address

import pytest

from tests.integration.sandbox_network.conftest import OPEN, SECRET, Names, Town, settle
from tiltyard.sandbox.network import Reason, Verdict, attached

pytestmark = pytest.mark.sandbox


BOTH = """
port, secret = int(sys.argv[1]), int(sys.argv[2])
def both(host, port):
    return [status(f"GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n"),
            status(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n")]
"""


def test_there_is_no_way_around_the_proxy(town: Town) -> None:
    code = """
print([name for _, name in socket.if_nameindex()])
for address in (("127.0.0.9", int(sys.argv[1])), ("127.0.0.1", int(sys.argv[2])), ("1.1.1.1", 443), ("169.254.169.254", 80)):
    try: socket.create_connection(address, 5); print("in")
    except OSError as error: print("out")
try: print(socket.getaddrinfo("good.test", 443))
except OSError: print("no names")
"""

    async def play() -> list[str]:
        async with (
            town.servers(),
            town.pool.acquire(timeout=60) as box,
            attached(box, town.network("good.test"), resolver=town.names),
        ):
            return await town.program(box, code, town.secret.port)

    assert town.run(play()) == ["['lo']", *["out"] * 4, "no names"]


@pytest.mark.parametrize(
    ("allow", "host", "port"),
    [
        ("good.test", "evil.test", "own"),
        ("good.test", "good.test", "secret"),
        ("good.test", "sub.good.test", "own"),
        ("*.good.test", "good.test", "own"),
        ("*.good.test", "evilgood.test", "own"),
        ("*.good.test", "good.test.evil.test", "own"),
        ("good.test", "good.test.evil.test", "own"),
        ("good.test", OPEN, "own"),
        ("*", OPEN, "own"),
        ("good.test", "[::1]", "own"),
    ],
)
def test_what_no_rule_names_is_refused_and_never_looked_up(
    town: Town, allow: str, host: str, port: str
) -> None:
    names = {host: [[OPEN]], "good.test": [[OPEN]]}
    code = f"{BOTH}\nprint(both({host!r}, {'port' if port == 'own' else 'secret'}))"

    async def play() -> list[str]:
        town.names = Names(names)
        async with town.servers(), town.pool.acquire(timeout=60) as box:
            network = town.network(allow)
            out = attached(box, network, on_connection=town.records.append, resolver=town.names)
            async with out as gate:
                said = await town.program(box, code, town.secret.port)
                await settle(gate)
                return said

    (said,) = town.run(play())
    assert literal_eval(said) == ["HTTP/1.1 403 not_allowed"] * 2
    assert town.names.asked == []
    assert (town.server.connections, town.secret.connections) == (0, 0)
    assert {record.verdict for record in town.records} == {Verdict.refused}


ODD = (
    *(
        "0x7f.1",
        "0x7f000009",
        "2130706441",
        "127.9",
        "127.0.9",
        "0177.0.0.9",
        "127.0.0.09",
        "127.0.0.9.",
        "0",
    ),
    *("127.1", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[::ffff:7f00:9]", "[::1%lo]", "[127.0.0.9]", "[]"),
    *(
        "good.test@127.0.0.1",
        "user:pass@good.test",
        "good.test%00.evil.test",
        "good.test%2eevil",
        "good..test",
    ),
    *("good.test..", ".good.test", "good.test\\evil.test", "good.test,evil.test", "-good.test", "xn--a"),
    *("good_test/..", "a" * 64 + ".test", "a." * 127 + "test", "localhost", "LOCALHOST.", "*.good.test"),
)


def test_hosts_in_odd_notations_lead_nowhere(town: Town) -> None:
    code = f"{BOTH}\nfor host in {ODD!r}: print(both(host, port) + both(host, secret))"

    async def play() -> list[str]:
        town.names = Names({"good.test": [[OPEN]]})
        async with town.servers(), town.pool.acquire(timeout=60) as box:
            rules = (
                f"{host}:{port}"
                for host in ("*", "good.test")
                for port in (town.server.port, town.secret.port)
            )
            network = town.network(*rules, private=["127.0.0.0/8", "::1/128"], connections_per_second=1000)
            out = attached(box, network, on_connection=town.records.append, resolver=town.names)
            async with out as gate:
                said = await town.program(box, code, town.secret.port)
                await settle(gate)
                return said

    for host, said in zip(ODD, town.run(play()), strict=True):
        for answer in literal_eval(said):
            assert answer.split()[1] in ("400", "403", "502"), (host, answer)
    assert (town.server.connections, town.secret.connections) == (0, 0)
    assert set(town.names.asked) <= {"localhost", "xn--a"}
    assert len(town.records) == 4 * len(ODD)
    assert not [record for record in town.records if record.verdict is Verdict.allowed]


def test_the_usual_spellings_of_an_allowed_host_all_lead_to_it(town: Town) -> None:
    code = (
        f"{BOTH}\nfor host in ('good.test', 'GOOD.test', 'good.test.', 'Good.Test.'): print(both(host, port))"
    )
    said = town.play(code, 1)
    assert [literal_eval(line) for line in said] == [
        ["HTTP/1.1 200 OK", "HTTP/1.1 200 Connection established"]
    ] * 4
    assert {record.host for record in town.records} == {"good.test"}


SPECIAL = (
    *(
        "127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "169.254.170.2",
        "100.64.0.1",
    ),
    *(
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
    ),
    *(
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
    ),
    *(
        "2002:7f00:1::1",
        "2002:808:808::1",
        "2001:0:7f00:1::",
        "fe80::1",
        "fe80::1%lo",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
    ),
)


def test_an_allowed_name_that_leads_to_a_special_address_is_refused(town: Town) -> None:
    names = {f"n{at}.test": [[address]] for at, address in enumerate(SPECIAL)}
    code = f"{BOTH}\nfor at in range({len(SPECIAL)}): print(both(f'n{{at}}.test', port))"
    said = town.play(code, 1, names=names, allow=["*"], private=[], connections_per_second=1000)
    for address, line in zip(SPECIAL, said, strict=True):
        assert literal_eval(line) == ["HTTP/1.1 403 address"] * 2, address
    records = sorted(town.records, key=lambda record: record.number)
    assert [ip_address(record.address) for record in records][::2] == [ip_address(text) for text in SPECIAL]


def test_a_metadata_service_is_refused_also_in_a_range_that_was_opened(town: Town) -> None:
    names = {"meta.test": [["169.254.169.254"]], "six.test": [["fd00:ec2::254"]]}
    code = f"{BOTH}\nprint(both('meta.test', port) + both('six.test', port) + both('169.254.169.254', port))"
    (said,) = town.play(
        code, 1, names=names, allow=["*", "169.254.169.254"], private=["169.254.0.0/16", "fd00::/8"]
    )
    assert literal_eval(said) == ["HTTP/1.1 403 address"] * 6


def test_a_name_whose_answer_changes_leads_only_to_what_was_judged(town: Town) -> None:
    """Each connection is one look-up; the second answer of a rebinding name is judged like the first."""
    names = {"good.test": [[OPEN], [SECRET], [OPEN, SECRET], [SECRET, OPEN]]}
    code = """
for _ in range(4): print(status(f"GET http://good.test:{sys.argv[1]}/ HTTP/1.1\\r\\nHost: good.test:{sys.argv[1]}\\r\\n\\r\\n"))
"""
    said = town.play(code, names=names)
    assert said == ["HTTP/1.1 200 OK", "HTTP/1.1 403 address", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK"]
    assert town.names.asked == ["good.test"] * 4
    records = sorted(town.records, key=lambda record: record.number)
    assert [record.address for record in records] == [OPEN, SECRET, OPEN, OPEN]
    assert town.server.connections == 3


def test_a_redirect_is_judged_as_any_other_request(town: Town) -> None:
    code = """
import urllib.request as u
for path in "evil", "meta", "self":
    try: print(u.urlopen(f"http://good.test:{sys.argv[1]}/{path}").status)
    except u.HTTPError as error: print(error.code, error.reason)
"""
    places = {
        b"/evil": b"http://evil.test/",
        b"/meta": b"http://169.254.169.254/latest",
        b"/self": b"http://[::1]:80/",
    }
    town.server.answer = lambda head: (
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n" % places[head.split()[1]]
    )
    said = town.play(
        "import urllib.error, urllib.request\nurllib.request.HTTPError = urllib.error.HTTPError\n" + code
    )
    assert said == ["403 not_allowed"] * 3
    assert town.reasons() == [Reason.done, Reason.not_allowed] * 3
