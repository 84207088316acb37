"""Attacks on whoever uses the cell next."""

# ruff: noqa: E501  (attack programs read better unbroken)

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab, said
from tiltyard.sandbox import WarmPool

pytestmark = pytest.mark.sandbox


def test_the_next_box_of_a_used_cell_shows_nothing_of_the_last(lab: Lab) -> None:
    plant = """
import os, socket, mmap
open("/box/planted", "w"); open("/tmp/planted", "w"); open("/dev/shm/planted", "w")
s = socket.socket(); s.bind(("127.0.0.1", 8080)); s.listen(); c = socket.create_connection(("127.0.0.1", 8080)); s.accept()
os.system("ipcmk -M 4096 -Q -S 1 >/dev/null 2>&1")
"""
    look = """
import os, socket
print(os.listdir("/box"), os.listdir("/tmp"), os.listdir("/dev/shm"))
s = socket.socket(); s.bind(("127.0.0.1", 8080))
print(open("/proc/net/dev").read().split("lo:")[1].split()[1])
print(sum(len(open("/proc/sysvipc/" + kind).readlines()) - 1 for kind in ("shm", "msg", "sem")))
"""

    async def both() -> set[tuple[int, str]]:
        async with WarmPool(size=1, limits=LIMITS) as pool:  # few cells, so that some are used again
            seen: set[tuple[int, str]] = set()
            cells: list[int] = []
            for _ in range(12):
                async with pool.acquire() as box:
                    cells.append(int(box.id.split("-")[1]))
                    seen.add((0, said(await box.exec(["python3", "-I", "-S", "-c", look]))))
                    assert (await box.exec(["python3", "-I", "-S", "-c", plant])).ok
            assert len(set(cells)) < len(cells)
            return seen

    assert lab.run(both()) == {(0, "[] [] []\n0\n0")}
