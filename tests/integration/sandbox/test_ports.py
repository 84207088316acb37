"""Servers inside boxes, called from outside."""

# ruff: noqa: E501  (programs read better unbroken)

import asyncio
import socket
from pathlib import Path

import httpx
import pytest

from tests.integration.sandbox.conftest import Lab
from tiltyard.sandbox import Box, PortClosed

pytestmark = pytest.mark.sandbox

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{sys.argv[1]} says {self.path}".encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""


async def serve(box: Box, name: str) -> None:
    await box.write("serve.py", SERVER)
    await box.start(["python3", "serve.py", name])


def test_a_web_service_in_each_of_two_boxes_answers_on_the_same_port(lab: Lab) -> None:
    async def grade() -> list[str]:
        async with lab.pool.acquire_many(2, timeout=60) as boxes:
            for box, name in zip(boxes, ("one", "two"), strict=True):
                await serve(box, name)
            async with (
                boxes[0].expose(8080) as one,
                boxes[1].expose(8080) as two,
                httpx.AsyncClient() as client,
            ):
                answers = [await client.get(f"http://{address}/hello") for address in (one, two, one)]
                return [answer.text for answer in answers]

    assert lab.run(grade()) == ["one says /hello", "two says /hello", "one says /hello"]


def test_a_connection_waits_for_a_server_that_starts(lab: Lab) -> None:
    async def call(box: Box) -> bytes:
        await serve(box, "late")
        reader, writer = await asyncio.open_connection(sock=await box.connect(8080, timeout=60))
        writer.write(b"GET /x HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.split(b"\r\n\r\n")[1]

    assert lab.with_box(call) == b"late says /x"


def test_a_server_on_ipv6_is_reached_too(lab: Lab) -> None:
    code = "import socket\ns = socket.socket(socket.AF_INET6); s.bind(('::1', 9000)); s.listen(); s.accept()[0].sendall(b'six')"

    async def call(box: Box) -> bytes:
        await box.start(["python3", "-c", code])
        with await box.connect(9000, timeout=60) as found:
            return await asyncio.get_running_loop().sock_recv(found, 10)

    assert lab.with_box(call) == b"six"


def test_a_unix_socket_on_the_host_leads_in(lab: Lab, tmp_path: Path) -> None:
    async def call(box: Box) -> bytes:
        await serve(box, "unix")
        (await box.connect(8080, timeout=60)).close()
        async with box.expose(8080, path=str(tmp_path / "s")) as path:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"GET /u HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer.split(b"\r\n\r\n")[1]

    assert lab.with_box(call) == b"unix says /u"


@pytest.mark.parametrize("port", [0, 70_000, 4444])
def test_a_port_that_nobody_serves_is_told(lab: Lab, port: int) -> None:
    async def call(box: Box) -> None:
        with pytest.raises(PortClosed, match=str(port)):
            await box.connect(port, timeout=0.1)

    lab.with_box(call)


def test_a_server_of_the_host_is_not_reached_through_a_box(lab: Lab) -> None:
    async def call(box: Box) -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            with pytest.raises(PortClosed):
                await box.connect(server.getsockname()[1], timeout=0.05)

    lab.with_box(call)


def test_a_kept_connection_ends_with_its_box(lab: Lab) -> None:
    async def call() -> bytes:
        async with lab.pool.acquire(timeout=60) as box:
            await serve(box, "gone")
            found = await box.connect(8080, timeout=60)
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(found, 10), 60)
        except ConnectionResetError:
            return b""
        finally:
            found.close()

    assert lab.run(call()) == b""
