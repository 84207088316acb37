"""Attacks on the way out: every bypass is tried from a box, against real servers beside the allowed one."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import errno
import socket
import ssl
from ast import literal_eval
from ipaddress import ip_address

import pytest

from tests.integration.sandbox_network.conftest import OPEN, PRELUDE, SECRET, Names, Town, settle
from tiltyard.sandbox import WarmPool
from tiltyard.sandbox.network import Reason, Verdict, attached

pytestmark = pytest.mark.sandbox

BOTH = """
port, secret = int(sys.argv[1]), int(sys.argv[2])
def both(host, port):
    return [status(f"GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n"),
            status(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n")]
"""


def reasons(town: Town) -> list[Reason]:
    return [record.reason for record in sorted(town.records, key=lambda record: record.number)]


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
    assert reasons(town) == [Reason.done, Reason.not_allowed] * 3


HEAD = "POST http://good.test:{port}/ok HTTP/1.1\r\nHost: good.test:{port}\r\n"
HIDDEN = "GET /hidden HTTP/1.1\r\nHost: evil.test\r\n\r\n"
SMUGGLED = (
    HEAD + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: 0\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: +0\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: 0, 60\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "X: y\rContent-Length: 60\r\n\r\n" + HIDDEN,
    HEAD + "X\0: y\r\n\r\n" + HIDDEN,
    HEAD + " folded: y\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: 0\r\n\r\n" + HIDDEN,
    HEAD + "Connection: host\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    HEAD + "Connection: content-length\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    HEAD + "Host: evil.test\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    HEAD.replace("Host: good.test", "Host: evil.test") + "Content-Length: 0\r\n\r\n",
    HEAD.replace("Host: good.test:{port}", "Host: good.test:1") + "Content-Length: 0\r\n\r\n",
    HEAD.replace("good.test:{port}/ok", "good.test:{port}/ok#@evil.test/") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "https://") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "http:/") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "http://evil.test\\@") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "ftp://") + "\r\n" + HIDDEN,
    HEAD.replace("/ok", "/ok\thidden") + "\r\n" + HIDDEN,
    HEAD.replace(" HTTP/1.1", " HTTP/9.9", 1) + "\r\n" + HIDDEN,
    "GET /hidden HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT good.test:{port} HTTP/1.1\r\nHost: evil.test\r\n\r\n" + HIDDEN,
    "CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    "CONNECT good.test:{port}/hidden HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT http://good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n" + HIDDEN,
    "CONNECT good.test:0{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "CONNECT good.test:+{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "CONNECT good.test:99999 HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "\x05\x01\x00" + HIDDEN,
    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + HIDDEN,
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
)


def test_no_second_request_is_hidden_in_an_allowed_one(town: Town) -> None:
    code = f"""
port = sys.argv[1]
for raw in {SMUGGLED!r}:
    print(say(raw.replace("{{port}}", port).encode("latin-1")).split(b"\\r\\n")[0].decode())
"""
    said = town.play(code, connections_per_second=1000)
    assert len(said) == len(SMUGGLED)
    for heard in town.server.heard:
        assert heard.startswith(b"POST /ok HTTP/1.1\r\nhost: good.test:%d\r\n" % town.server.port), heard
        assert heard.count(b"HTTP/1.1") == 1, heard
        assert not (b"content-length:" in heard and b"transfer-encoding:" in heard), heard
        assert b"hidden" not in heard, heard
    for raw, answer in zip(SMUGGLED, said, strict=True):
        assert answer.split()[1] in ("200", "400", "403", "501"), (raw, answer)
    assert len(town.records) == len(SMUGGLED)


def greeting(name: str | None) -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (greeting("good.test"), Reason.done),
        (greeting("GOOD.test"), Reason.done),
        (greeting(None), Reason.done),
        (b"\x17 no greeting", Reason.done),
        (greeting("evil.test"), Reason.host_mismatch),
        (greeting("good.test.evil.test"), Reason.host_mismatch),
        (greeting("good.test").replace(b"good.test", b"evil\0test"), Reason.bad_request),
        (b"\x16\x03\x01\x02\x00 no greeting" + b"x" * 600, Reason.bad_request),
        (b"\x16\x03\x01", Reason.broken),
    ],
    ids=["same", "case", "nameless", "no TLS", "another", "longer", "NUL", "malformed", "cut off"],
)
def test_a_tls_greeting_goes_to_the_host_of_its_tunnel_alone(
    town: Town, hello: bytes, reason: Reason
) -> None:
    """In three pieces, so that none of them is judged for the whole."""
    code = """
s, hello = tunnel(f"good.test:{sys.argv[1]}"), bytes.fromhex(sys.argv[2])
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for part in hello[:1], hello[1:40], hello[40:]:
    if part: s.sendall(part); time.sleep(.02)
s.shutdown(1); rest(s)
"""
    town.play(code, hello.hex())
    assert reasons(town) == [reason]
    assert b"".join(town.server.heard) == (hello if reason is Reason.done else b"")


@pytest.mark.parametrize(
    "flood",
    [
        'b"GET http://good.test/ HTTP/1.1\\r\\nX: " + b"x" * 4_000_000',
        'b"GET http://good.test/" + b"x" * 4_000_000',
        'b"GET http://good.test/ HTTP/1.1\\r\\n" + b"X: y\\r\\n" * 500_000',
        'b"\\r\\n" * 1_000_000',
    ],
)
def test_a_head_without_end_is_cut_off(town: Town, flood: str) -> None:
    code = f"""
with dial() as s:
    try: s.sendall({flood}); s.shutdown(1); print(rest(s)[:12])
    except OSError: print("cut")
"""
    (said,) = town.play(code)
    assert "400" in said or said == "cut" or said.startswith("b'!")
    assert [(record.verdict, record.reason) for record in town.records] == [
        (Verdict.refused, Reason.bad_request)
    ]


def test_a_request_that_trickles_is_given_up(town: Town) -> None:
    code = """
with dial() as s:
    try:
        for letter in "GET http://good.test/" + "x" * 10_000: s.sendall(letter.encode()); time.sleep(.01)
    except OSError: print("cut")
"""
    assert town.play(code, request_seconds=0.2) == ["cut"]
    assert reasons(town) == [Reason.slow]


def test_a_tunnel_that_says_nothing_is_given_up(town: Town) -> None:
    assert town.play('print(rest(tunnel(f"good.test:{sys.argv[1]}")))', idle_seconds=0.2) == ["b''"]
    assert reasons(town) == [Reason.idle]


def test_a_server_that_never_answers_is_given_up(town: Town) -> None:
    town.server.answer = lambda head: b""
    code = 'print(status(f"GET http://good.test:{sys.argv[1]}/ HTTP/1.1\\r\\nHost: good.test:{sys.argv[1]}\\r\\n\\r\\n"))'
    assert town.play(code, idle_seconds=0.2) == ["HTTP/1.1 504 idle"]


def test_a_connection_ends_at_its_bytes_each_way(town: Town) -> None:
    code = """
s = tunnel(f"good.test:{sys.argv[1]}")
try: s.sendall(b"x" * 200_000); s.shutdown(1); print(rest(s))
except OSError: print("cut")
print(len(rest(s)) if (s := tunnel(f"good.test:{sys.argv[1]}")).sendall(b"\\r\\n\\r\\n") is None else 0)
"""
    town.server.answer = lambda head: b"y" * 200_000
    said = town.play(code, connection_bytes=100_000)
    assert reasons(town) == [Reason.too_many_bytes] * 2
    assert int(said[1]) <= 100_000
    assert max(len(heard) for heard in town.server.heard) <= 100_000
    assert max(record.bytes_up for record in town.records) <= 100_000
    assert max(record.bytes_down for record in town.records) <= 100_000


def test_a_flood_of_connections_is_held_at_its_number(town: Town) -> None:
    """Silent connections take the places that there are; others wait in the kernel, and cost nothing here."""
    code = """
held = []
try:
    for _ in range(200): s = socket.socket(); s.setblocking(False); s.connect_ex(("127.0.0.1", 3128)); held.append(s)
except OSError: pass
print(len(held) > 60, flush=True); time.sleep(600)
"""

    async def play() -> list[int]:
        async with town.servers(), town.pool.acquire(timeout=60) as box:
            network = town.network(connections=4, connections_per_second=10_000)
            async with attached(box, network, on_connection=town.records.append) as gate:
                flood = await box.start(["python3", "-c", PRELUDE + code])
                assert (await flood.more()).data == b"True\n", flood.output("stderr")
                seen = [gate.live]
                while seen[-1] < 4 or len(seen) < 50:
                    await asyncio.sleep(0.005)
                    seen.append(gate.live)
                return seen

    assert max(town.run(play())) == 4
    assert reasons(town) == [Reason.box_gone] * 4


def test_a_box_gets_no_more_connections_than_it_may_have_in_all(town: Town) -> None:
    code = """
for _ in range(5):
    try: print(status("GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"))
    except OSError: print("closed")
"""
    said = town.play(code, connections_in_all=3)
    assert said[:3] == ["HTTP/1.1 400 bad_request"] * 3
    assert not any("HTTP" in line for line in said[3:])
    assert reasons(town) == [Reason.bad_request] * 3 + [Reason.too_many_connections]


def test_a_listener_that_is_held_too_long_is_not_met_by_the_next_box(town: Town) -> None:
    """Whoever holds it may be late: the next box of the cell is in another network namespace."""
    knock = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 3128)))"

    async def play() -> str:
        kept: dict[str, socket.socket] = {}
        try:
            async with WarmPool(size=1, limits=town.pool.limits) as pool:
                for _ in range(20):
                    async with pool.acquire(timeout=60) as box:
                        cell = box.id.split("-")[1]
                        if cell in kept:
                            return (await box.exec(["python3", "-c", knock])).stdout.decode().strip()
                        kept[cell] = await box.listen(3128)
        finally:
            for listener in kept.values():
                listener.close()
        return "no cell served twice"

    assert town.run(play()) == str(errno.ECONNREFUSED)


def test_a_stalled_name_holds_up_its_own_connection_alone(town: Town) -> None:
    class Stalled(Names):
        async def resolve(self, host: str) -> list[str]:
            await asyncio.sleep(3600 if host == "slow.test" else 0)
            return [OPEN]

    code = """
slow = dial(); slow.sendall(b"CONNECT slow.test:443 HTTP/1.1\\r\\nHost: slow.test:443\\r\\n\\r\\n")
print(status(f"GET http://good.test:{sys.argv[1]}/ HTTP/1.1\\r\\nHost: good.test:{sys.argv[1]}\\r\\n\\r\\n"))
print(rest(slow).split(b"\\r\\n")[0])
"""

    async def play() -> list[str]:
        async with town.servers(), town.pool.acquire(timeout=60) as box:
            network = town.network("good.test", "slow.test:443", connect_seconds=0.5)
            async with attached(box, network, resolver=Stalled({})):
                return await town.program(box, code)

    assert town.run(play()) == ["HTTP/1.1 200 OK", "b'HTTP/1.1 502 unknown_name'"]
