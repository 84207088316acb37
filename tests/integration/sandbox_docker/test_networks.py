"""Ways out of docker boxes: runc's as native ones, and none of runsc, which says so."""

import asyncio

import pytest

from tests.integration.sandbox_docker.conftest import DockerLab
from tiltyard.sandbox import CapabilityRefused, Connection, Network
from tiltyard.sandbox.docker.box import DockerBox
from tiltyard.sandbox.network import attached

HOST = "127.0.0.9"


def test_a_runc_box_reaches_the_host_that_is_named_and_no_other(lab: DockerLab) -> None:
    records: list[Connection] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async def call() -> bytes:
        server = await asyncio.start_server(answer, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        code = f"""
import urllib.error, urllib.request
print(urllib.request.urlopen("http://{HOST}:{port}/").read())
try: urllib.request.urlopen("http://example.org:{port}/")
except urllib.error.HTTPError as error: print(error.code)
"""
        network = Network(allow=[f"{HOST}:{port}"], private=[f"{HOST}/32"])
        try:
            async with lab.pool.acquire(timeout=120, network=network, on_connection=records.append) as box:
                result = await box.exec(["python3", "-I", "-S", "main.py"], files={"main.py": code})
                assert result.ok, result
                return result.stdout
        finally:
            server.close()

    assert lab.run(call()) == b"b'hello'\n403\n"
    assert [record.host for record in records] == [HOST, "example.org"]


def test_a_runsc_box_refuses_a_network_and_stays_good(gvisor_lab: DockerLab) -> None:
    async def talk(box: DockerBox) -> None:
        with pytest.raises(CapabilityRefused, match="descriptors"):
            async with attached(box, Network(allow=["example.org:443"])):
                pass
        assert (await box.exec(["true"])).ok

    gvisor_lab.with_box(talk)
