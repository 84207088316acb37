"""What this host can enforce, found by trying.

Guarantees: `usable` is true only after a command in a real box found itself isolated in each way listed.
Does not: change the host, but for the image store and the helpers, which it makes if they are missing."""

import os
import platform
import subprocess
from dataclasses import dataclass
from enum import StrEnum

from .errors import SandboxError, SandboxUnavailable
from .limits import Limits
from .native.backend import NativeBackend
from .native.host import DOOR, check_rights
from .native.toolchain import CompilerFault, current_helpers, find_compiler, is_warm
from .pool import WarmPool
from .result import ExecResult

_OLDEST_KERNEL = (5, 11)  # close_range with CLOEXEC, openat2, clone3
_PROBE = """
import os, socket
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
print("uid", os.getuid())
print("no new privileges", status["NoNewPrivs"])
print("seccomp", status["Seccomp"])
print("bounding set", int(status["CapBnd"], 16))
print("processes seen", sum(name.isdigit() for name in os.listdir("/proc")))
print("interfaces", ",".join(name for _, name in socket.if_nameindex()))
print("python", ".".join(map(str, __import__("sys").version_info[:2])))
"""
_EXPECTED = {
    "no new privileges": "1",
    "seccomp": "2",
    "bounding set": "0",
    "processes seen": "2",
    "interfaces": "lo",
}


class Health(StrEnum):
    """How a check came out."""

    ok = "ok"
    """as it should be"""
    missing = "missing"
    """boxes cannot be made, or would be weaker than promised"""
    slow = "slow"
    """boxes are as safe, and slower"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that boxes need."""

    name: str
    health: Health
    detail: str
    """what was found; with `missing`, what to do"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """Every check, in the order of need."""

    checks: tuple[Check, ...]

    @property
    def usable(self) -> bool:
        return not any(check.health is Health.missing for check in self.checks)


def _check(name: str, good: bool, found: str, cure: str) -> Check:
    return Check(
        name=name, health=Health.ok if good else Health.missing, detail=found if good else f"{found}: {cure}"
    )


def _kernel() -> Check:
    release = platform.release()
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    return _check("kernel", version >= _OLDEST_KERNEL, f"Linux {release}", "needs 5.11 or newer")


def _rights() -> Check:
    try:
        check_rights()
    except SandboxUnavailable as error:
        return Check(name="rights", health=Health.missing, detail=str(error))
    way = "makes boxes itself" if os.geteuid() == 0 else f"has boxes made through {DOOR}"
    return Check(name="rights", health=Health.ok, detail=f"uid {os.geteuid()} {way}")


def _helpers() -> list[Check]:
    """The helper programs and what they say of this host's cgroups."""
    try:
        helpers = current_helpers()
    except CompilerFault as error:
        return [_check("helpers", False, "not built", str(error))]
    said = subprocess.run([helpers.host, "--doctor"], capture_output=True, text=True, check=False).stdout
    controllers = [line.split() for line in said.splitlines()]
    compiler = find_compiler() or "no compiler now"
    return [
        _check("helpers", True, f"current ({compiler})", ""),
        _warm(is_warm(helpers)),
        *(
            _check(
                name, version != "none", version, "enable this controller, or delegate it to this container"
            )
            for name, version in controllers
        ),
    ]


def _warm(warm: bool) -> Check:
    if warm:
        return Check(name="warm Python", health=Health.ok, detail="copied into boxes")
    cure = "Python starts cold in every box: install its headers (python3-dev) and reinstall"
    return Check(name="warm Python", health=Health.slow, detail=cure)


async def _box() -> list[Check]:
    """A real box, and what a command finds in it."""
    try:
        async with WarmPool(size=1, limits=Limits(), backend=NativeBackend()) as pool, pool.acquire() as box:
            result = await box.exec(["python3", "-I", "-S", "-c", _PROBE])
    except SandboxError as error:
        return [_check("box", False, "none could be made", str(error))]
    return _judge(result)


def _judge(result: ExecResult) -> list[Check]:
    if not result.ok:
        said = result.stderr.decode(errors="replace").strip()[-300:]
        return [_check("box", False, f"its command ended {result.outcome}", said or result.detail)]
    found = dict(line.rsplit(" ", 1) for line in result.stdout.decode().splitlines())
    return [
        _check(
            "box", True, f"python {found['python']} runs in one, in {result.wall_seconds * 1e3:.0f} ms", ""
        ),
        *(
            _check(
                name, found[name] == wanted, found[name], f"a box must show {wanted}; report this as a bug"
            )
            for name, wanted in _EXPECTED.items()
        ),
    ]


async def doctor() -> DoctorReport:
    """Tries everything that the native backend needs. Takes about a second."""
    checks = [_kernel(), _rights(), *_helpers()]
    if not any(check.health is Health.missing for check in checks):
        checks += await _box()
    return DoctorReport(checks=tuple(checks))
