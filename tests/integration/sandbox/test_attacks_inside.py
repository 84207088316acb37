"""Attacks on what is inside: nothing of ours, nothing of the host but /usr and the interpreter."""

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
