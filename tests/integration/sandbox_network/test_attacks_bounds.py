"""Attacks by how much goes out: without end, without a word, in floods."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import errno
import socket

import pytest

from tests.integration.sandbox_network.conftest import OPEN, PRELUDE, Names, Town
from tiltyard.sandbox import WarmPool
from tiltyard.sandbox.network import Reason, Verdict, attached

pytestmark = pytest.mark.sandbox


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
    assert town.reasons() == [Reason.slow]


def test_a_tunnel_that_says_nothing_is_given_up(town: Town) -> None:
    assert town.play('print(rest(tunnel(f"good.test:{sys.argv[1]}")))', idle_seconds=0.2) == ["b''"]
    assert town.reasons() == [Reason.idle]


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
    assert town.reasons() == [Reason.too_many_bytes] * 2
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
    assert town.reasons() == [Reason.box_gone] * 4


def test_a_box_gets_no_more_connections_than_it_may_have_in_all(town: Town) -> None:
    code = """
for _ in range(5):
    try: print(status("GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"))
    except OSError: print("closed")
"""
    said = town.play(code, connections_in_all=3)
    assert said[:3] == ["HTTP/1.1 400 bad_request"] * 3
    assert not any("HTTP" in line for line in said[3:])
    assert town.reasons() == [Reason.bad_request] * 3 + [Reason.too_many_connections]


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
