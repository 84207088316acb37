"""What an allowed program finds: its server, whole answers, and a record of each connection."""

# ruff: noqa: E501  (programs read better unbroken)

import asyncio
import hashlib
from ast import literal_eval

import pytest

from tests.integration.sandbox_network.conftest import OPEN, PRELUDE, Names, Town, settle
from tiltyard.sandbox import CapabilityRefused, Connection, Network, PortClosed, Shape
from tiltyard.sandbox.network import Reason, Verdict, attached

pytestmark = pytest.mark.sandbox

GET = 'print(say(f"GET http://good.test:{sys.argv[1]}/a?b=c HTTP/1.1\\r\\nHost: good.test:{sys.argv[1]}\\r\\n\\r\\n"))'


def ends(town: Town) -> list[tuple[Verdict, Reason]]:
    return [(record.verdict, record.reason) for record in town.records]


def test_a_plain_request_reaches_its_server_and_is_recorded(town: Town) -> None:
    (said,) = town.play(GET)
    assert b"200" in literal_eval(said)
    assert literal_eval(said).endswith(b"ok")
    (record,) = town.records
    assert (record.host, record.port, record.address) == ("good.test", town.server.port, OPEN)
    assert (record.verdict, record.reason, record.number) == (Verdict.allowed, Reason.done, 1)
    assert record.bytes_up == len(town.server.heard[0])
    assert record.bytes_down > 0
    assert record.seconds >= 0


def test_a_program_that_knows_proxies_needs_to_know_nothing_else(town: Town) -> None:
    code = 'import urllib.request as u; print(u.urlopen(f"http://good.test:{sys.argv[1]}/x").read())'
    assert town.play(code) == ["b'ok'"]
    assert town.server.heard[0].startswith(b"GET /x HTTP/1.1\r\n")


def test_headers_for_the_proxy_stay_with_it_and_the_rest_arrives(town: Town) -> None:
    code = """
print(status(f"POST http://GOOD.test.:{sys.argv[1]}?q HTTP/1.1\\r\\nHost: good.TEST:{sys.argv[1]}\\r\\nProxy-Authorization: Basic c2VjcmV0\\r\\nConnection: x-mine\\r\\nX-Mine: 1\\r\\nUpgrade: h2c\\r\\nX-Yours: 2\\r\\nContent-Length: 4\\r\\n\\r\\nbody"))
"""
    assert town.play(code) == ["HTTP/1.1 200 OK"]
    heard = town.server.heard[0]
    assert heard.startswith(b"POST /?q HTTP/1.1\r\nhost: good.test:%d\r\n" % town.server.port)
    assert heard.endswith(b"\r\n\r\nbody")
    assert b"x-yours: 2" in heard
    for word in (b"secret", b"c2VjcmV0", b"mine", b"Upgrade"):
        assert word not in heard


def test_a_chunked_body_and_one_that_waits_for_leave_arrive(town: Town) -> None:
    code = """
head = f"PUT http://good.test:{sys.argv[1]}/ HTTP/1.1\\r\\nHost: good.test:{sys.argv[1]}\\r\\n"
print(status(head + "Transfer-Encoding: chunked\\r\\n\\r\\n5\\r\\nhello\\r\\n0\\r\\n\\r\\n"))
with dial() as s:
    s.sendall((head + "Expect: 100-continue\\r\\nContent-Length: 5\\r\\n\\r\\n").encode())
    print(s.recv(25).split(b"\\r\\n")[0])
    s.sendall(b"later"); print(b" 200 " in rest(s))
"""
    assert town.play(code) == ["HTTP/1.1 200 OK", "b'HTTP/1.1 100 '", "True"]
    assert b"5\r\nhello\r\n0\r\n\r\n" in town.server.heard[0]
    assert town.server.heard[1].endswith(b"\r\n\r\nlater")


def test_a_tunnel_carries_both_ways_until_both_have_said_all(town: Town) -> None:
    code = """
s = tunnel(f"good.test:{sys.argv[1]}"); s.sendall(b"hi\\r\\n\\r\\n"); s.shutdown(1); print(rest(s))
"""
    town.server.answer = lambda head: b"heard " + head.strip()
    assert town.play(code) == ["b'heard hi'"]
    (record,) = town.records
    assert (record.bytes_up, record.bytes_down) == (6, 8)
    assert ends(town) == [(Verdict.allowed, Reason.done)]


def test_what_is_sent_before_the_tunnel_stands_is_not_lost(town: Town) -> None:
    code = """
with dial() as s:
    s.sendall(f"CONNECT good.test:{sys.argv[1]} HTTP/1.1\\r\\nHost: good.test:{sys.argv[1]}\\r\\n\\r\\nearly\\r\\n\\r\\n".encode())
    s.shutdown(1); print(rest(s).endswith(b"heard early"))
"""
    town.server.answer = lambda head: b"heard " + head.strip()
    assert town.play(code) == ["True"]


def test_a_large_answer_arrives_whole_in_all_its_framings(town: Town) -> None:
    body = bytes(range(256)) * 12_000
    framings = {
        b"length": b"Content-Length: %d\r\n\r\n" % len(body) + body,
        b"chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
    }
    town.server.answer = lambda head: b"HTTP/1.1 200 OK\r\n" + framings[head.split()[1].strip(b"/")]
    code = """
import hashlib, urllib.request as u
for name in ("length", "chunks"): print(hashlib.sha256(u.urlopen(f"http://good.test:{sys.argv[1]}/{name}").read()).hexdigest())
"""
    assert town.play(code) == [hashlib.sha256(body).hexdigest()] * 2


@pytest.mark.parametrize(
    ("answers", "reason"),
    [({}, Reason.unknown_name), ({"good.test": [[]]}, Reason.unknown_name), ({"good.test": [["127.0.0.10"]]}, Reason.unreachable)],
)  # fmt: skip
def test_a_server_that_cannot_be_had_is_told_apart(town: Town, answers: dict, reason: Reason) -> None:
    (said,) = town.play(GET, names=answers or {"other.test": [[]]}, private=["127.0.0.10/32"])
    assert f"502 {reason}".encode() in literal_eval(said)
    assert ends(town) == [(Verdict.failed, reason)]


def test_an_answer_that_is_no_http_is_not_passed_on(town: Town) -> None:
    town.server.answer = lambda head: (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nsplit!"
    )
    (said,) = town.play(GET)
    assert b"502 bad_answer" in literal_eval(said)
    assert b"split" not in literal_eval(said)
    assert ends(town) == [(Verdict.failed, Reason.bad_answer)]


def test_a_box_that_was_reset_has_its_way_out_again_and_old_connections_end(town: Town) -> None:
    async def play() -> tuple[list[str], list[str]]:
        async with town.servers(), town.pool.acquire(timeout=60) as box:
            network = town.network("good.test")
            async with attached(box, network, on_connection=town.records.append, resolver=town.names) as gate:
                old = await box.start(
                    [
                        "python3",
                        "-c",
                        "import socket, sys; s = socket.create_connection(('127.0.0.1', 3128)); print('in', flush=True); s.recv(1)",
                    ]
                )
                await old.more()
                before = await town.program(box, GET)
                await settle(gate, left=1)
                await box.reset()
                after = await town.program(box, GET)
                await settle(gate)
                return before, after

    town.names = Names({"good.test": [[OPEN]]})
    before, after = town.run(play())
    assert b"200" in literal_eval(before[0])
    assert b"200" in literal_eval(after[0])
    assert {record.number: record.reason for record in town.records if record.number > 1} == {
        2: Reason.done,
        3: Reason.done,
    }
    assert len({record.box for record in town.records if record.reason is Reason.done}) == 2


def test_two_boxes_have_each_their_own_rules(town: Town) -> None:
    async def play() -> list[str]:
        town.names = Names({"good.test": [[OPEN]]})
        async with town.servers(), town.pool.acquire_many(2, timeout=60) as boxes:
            networks = town.network("good.test"), town.network("other.test")
            async with (
                attached(boxes[0], networks[0], resolver=town.names),
                attached(boxes[1], networks[1], resolver=town.names),
            ):
                both = await asyncio.gather(*(town.program(box, GET) for box in boxes))
                return [literal_eval(lines[0]).split(b"\r\n")[0].decode() for lines in both]

    assert town.run(play()) == ["HTTP/1.1 200 OK", "HTTP/1.1 403 not_allowed"]


def test_a_pool_lends_boxes_with_a_way_out(town: Town) -> None:
    records: list[Connection] = []

    async def play() -> list[str]:
        async with town.servers():
            network = Network(allow=[f"{OPEN}:{town.server.port}"], private=[f"{OPEN}/32"])
            async with town.pool.acquire(timeout=60, network=network, on_connection=records.append) as box:
                return await town.program(
                    box,
                    'import urllib.request as u; print(u.urlopen(f"http://127.0.0.9:{sys.argv[1]}/").read())',
                )

    assert town.run(play()) == ["b'ok'"]
    assert [record.host for record in records] == [OPEN]


def test_every_connection_has_one_record_also_when_its_box_goes(town: Town) -> None:
    async def play() -> None:
        async with town.servers(), town.pool.acquire(timeout=60) as box:
            network = town.network("good.test")
            async with attached(box, network, on_connection=town.records.append, resolver=town.names):
                code = "s = [dial() for _ in range(3)] + [tunnel(f'good.test:{sys.argv[1]}')]; print('in', flush=True); time.sleep(600)"
                held = await box.start(["python3", "-c", PRELUDE + code, str(town.server.port)])
                assert (await held.more()).data == b"in\n", held.output("stderr")

    town.names = Names({"good.test": [[OPEN]]})
    town.run(play())
    assert sorted(record.number for record in town.records) == [1, 2, 3, 4]
    assert {record.reason for record in town.records} == {Reason.box_gone}
    assert [record.host for record in town.records if record.verdict is Verdict.allowed] == ["good.test"]


def test_a_reset_by_the_shape_is_met_as_one(town: Town) -> None:
    code = """
s = tunnel(f"good.test:{sys.argv[1]}")
try:
    for _ in range(4000): s.sendall(b"x" * 4096)
    print(rest(s))
except OSError as error: print(type(error).__name__)
"""
    (said,) = town.play(code, shape=Shape(resets_per_mib=50, seed=3))
    assert said in ("ConnectionResetError", "BrokenPipeError")
    assert ends(town) == [(Verdict.failed, Reason.shaped)]


def test_a_slow_network_delivers_everything_and_not_before_its_time(town: Town) -> None:
    code = """
s = tunnel(f"good.test:{sys.argv[1]}")
began = time.monotonic(); s.sendall(b"x" * 60000 + b"\\r\\n\\r\\n"); got = rest(s) if s.shutdown(1) is None else b""
print(got.decode(), time.monotonic() - began)
"""
    town.server.answer = lambda head: b"whole" if len(head) == 60_004 else b""
    shape = Shape(kib_per_second=120, latency_ms=100, stalls_per_mib=1, stall_seconds=0.01)
    (said,) = town.play(code, shape=shape)
    got, seconds = said.split()
    assert got == "whole"
    assert float(seconds) >= 60_004 / 1024 / 120 + 0.1  # the bandwidth's share, and one round trip
    assert ends(town) == [(Verdict.allowed, Reason.done)]


def test_a_backend_that_cannot_hold_a_listener_says_so(town: Town) -> None:
    async def play() -> None:
        async with town.pool.acquire(timeout=60) as box:
            box._link.no_descriptors = "it is told so"  # type: ignore[attr-defined]
            with pytest.raises(CapabilityRefused, match="it is told so"):
                async with attached(box, town.network("good.test:443")):
                    pass
            box._link.no_descriptors = ""  # type: ignore[attr-defined]

    town.run(play())


def test_a_port_of_the_box_that_is_taken_is_told(town: Town) -> None:
    async def play() -> None:
        async with town.pool.acquire(timeout=60) as box:
            with await box.listen(3128):
                with pytest.raises(PortClosed, match="3128"):
                    async with attached(box, town.network("good.test:443")):
                        pass
                assert box.environment == {}

    town.run(play())
