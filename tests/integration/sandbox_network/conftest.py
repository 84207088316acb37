"""Boxes with a way out, a server that they may reach, and one beside it that they may not.

Names come from a resolver of the tests; servers are real, on addresses of this machine's loopback, of which
one is opened by name."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from tiltyard.sandbox import Box, Connection, Limits, Network, WarmPool
from tiltyard.sandbox.network import Gate, Reason, attached

T = TypeVar("T")

OPEN, SECRET = "127.0.0.9", "127.0.0.1"
LIMITS = Limits(memory_mb=128, pids=24, cpus=1.0, disk_mb=32, inodes=2048)
PRELUDE = """
import os, socket, sys, time
def dial():
    return socket.create_connection(("127.0.0.1", 3128))
def rest(s):
    got = b""
    try:
        while part := s.recv(65536): got += part
    except OSError as error: got += b"!" + type(error).__name__.encode()
    return got
def say(raw):
    with dial() as s:
        s.sendall(raw.encode() if isinstance(raw, str) else raw)
        return rest(s)
def status(raw):
    with dial() as s:
        s.sendall(raw.encode())
        return s.makefile("rb").readline().decode().strip("\\r\\n")
def tunnel(host):
    s = dial()
    s.sendall(f"CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        part = s.recv(1)
        if not part: raise SystemExit(f"no tunnel: {head}")
        head += part
    if b" 200 " not in head: raise SystemExit(f"no tunnel: {head}")
    return s
"""

Answer = Callable[[bytes], bytes]


def is_whole(heard: bytes) -> bool:
    """Whether a message with its body, if it has one, has come."""
    head, end, body = heard.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(end) and len(body) >= int(length[1] if length else 0)


@dataclass
class Server:
    """Reads what comes, answers each connection once a message is whole, keeps what it heard."""

    address: str
    port: int = 0
    connections: int = 0
    heard: list[bytes] = field(default_factory=list)
    answer: Answer = lambda head: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    """to what was heard"""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        at = len(self.heard)
        self.heard.append(b"")
        try:
            while data := await reader.read(65536):
                was_whole = is_whole(self.heard[at])
                self.heard[at] += data
                if was_whole or not is_whole(self.heard[at]):
                    continue
                writer.write(self.answer(self.heard[at]))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class Names:
    """A resolver that is told what to answer, and remembers what it was asked."""

    def __init__(self, answers: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """For each name the answers in turn; the last one stays."""
        self._answers = {name: list(turns) for name, turns in answers.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        turns = self._answers.get(host)
        if turns is None:
            raise OSError(f"no such name: {host}")
        return turns.pop(0) if len(turns) > 1 else turns[0]

    def close(self) -> None:
        pass


class Town:
    """A pool of boxes, and what lies outside them."""

    def __init__(self, runner: asyncio.Runner, pool: WarmPool) -> None:
        self._runner = runner
        self.pool = pool
        self.server = Server(OPEN)
        self.secret = Server(SECRET)
        self.records: list[Connection] = []
        self.names = Names({})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @asynccontextmanager
    async def servers(self) -> AsyncIterator[None]:
        started = []
        for each in (self.server, self.secret):
            listening = await asyncio.start_server(each.serve, each.address, 0)
            each.port = listening.sockets[0].getsockname()[1]
            started.append(listening)
        try:
            yield
        finally:
            for listening in started:
                listening.close()

    def network(self, *allow: str, **options: Any) -> Network:
        """`allow` without a port: the server's. The server's address alone is opened."""
        rules = [rule if ":" in rule else f"{rule}:{self.server.port}" for rule in allow or ("good.test",)]
        return Network(**{"allow": rules, "private": [f"{OPEN}/32"], **options})

    async def program(self, box: Box, code: str, *arguments: object) -> list[str]:
        """The lines that a Python program printed; `sys.argv[1:]` are the server's port and the arguments."""
        argv = ["python3", "-I", "-S", "main.py", str(self.server.port), *map(str, arguments)]
        result = await box.exec(argv, files={"main.py": PRELUDE + code}, cpu_seconds=20, wall_seconds=60)
        assert result.ok, result
        return result.stdout.decode().splitlines()

    def reasons(self) -> list[Reason]:
        """Of the connections, in the order in which they began."""
        return [record.reason for record in sorted(self.records, key=lambda record: record.number)]

    def play(
        self,
        code: str,
        *arguments: object,
        names: Mapping[str, Sequence[Sequence[str]]] | None = None,
        allow: Sequence[str] = (),
        **options: Any,
    ) -> list[str]:
        """One program in a box of its own, with a way out; the records are kept."""
        self.names = Names(names or {"good.test": [[OPEN]]})

        async def once() -> list[str]:
            async with self.servers(), self.pool.acquire(timeout=60) as box:
                network = self.network(*allow, **options)
                async with attached(
                    box, network, on_connection=self.records.append, resolver=self.names
                ) as gate:
                    said = await self.program(box, code, *arguments)
                    await settle(gate)
                    return said

        return self.run(once())


async def settle(gate: Gate, left: int = 0) -> None:
    """Until what a program's end closed was noticed here too: so many connections are left."""
    for _ in range(2000):
        if gate.live <= left:
            return
        await asyncio.sleep(0.005)


@pytest.fixture(scope="session")
def pool_and_runner() -> Iterator[tuple[WarmPool, asyncio.Runner]]:
    if os.geteuid() != 0:
        pytest.skip("making native sandboxes needs root")
    pool = WarmPool(size=2, limits=LIMITS)
    with asyncio.Runner() as runner:
        runner.run(pool.start())
        yield pool, runner
        runner.run(pool.close())


@pytest.fixture
def town(pool_and_runner: tuple[WarmPool, asyncio.Runner]) -> Town:
    pool, runner = pool_and_runner
    return Town(runner, pool)
