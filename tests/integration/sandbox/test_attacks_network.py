"""Attacks through the network: there is none but loopback, and each box has its own."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import errno
import secrets
import socket

import pytest

from tests.integration.sandbox.conftest import Lab, said

pytestmark = pytest.mark.sandbox


def test_there_is_no_way_out_of_the_network_namespace(lab: Lab) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        code = f"""
import socket
print([name for _, name in socket.if_nameindex()])
for family, address in ((2, ("127.0.0.1", {server.getsockname()[1]})), (2, ("169.254.169.254", 80)), (2, ("10.0.0.1", 80)),
                        (2, ("1.1.1.1", 53)), (10, ("fe80::1", 80)), (10, ("2606:4700::1111", 53))):
    try: socket.socket(family).connect(address); print("connected")
    except OSError as error: print(error.errno)
"""
        lines = said(lab.python(code)).splitlines()
    assert lines[0] == "['lo']"
    assert set(map(int, lines[1:])) <= {
        errno.ECONNREFUSED,
        errno.ENETUNREACH,
        errno.EINVAL,
        errno.EADDRNOTAVAIL,
    }


def test_two_boxes_use_the_same_port_and_the_same_abstract_name(lab: Lab) -> None:
    code = """
import socket, time
tcp = socket.socket(); tcp.bind(("127.0.0.1", 8080)); tcp.listen()
unix = socket.socket(socket.AF_UNIX); unix.bind("\\0name")
client = socket.create_connection(("127.0.0.1", 8080)); time.sleep(.2); print("served")
"""

    async def both() -> list[str]:
        async with lab.pool.acquire_many(2) as boxes:
            return [
                said(result)
                for result in await asyncio.gather(*(box.exec(["python3", "-c", code]) for box in boxes))
            ]

    assert lab.run(both()) == ["served", "served"]


def test_a_host_abstract_socket_cannot_be_reached(lab: Lab) -> None:
    name = f"\0host-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"import socket\ntry: socket.socket(socket.AF_UNIX).connect({name!r}); print('in')\nexcept OSError as e: print(e.errno)"
        assert int(said(lab.python(code))) == errno.ECONNREFUSED
