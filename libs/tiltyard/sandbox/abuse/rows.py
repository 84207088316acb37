"""Every attack, by its number, with what stops it.

Guarantees: each has proofs, every one of which is a build in which the attack succeeds
(`tests/integration/sandbox/test_walls.py`, those that could hurt a host in `infra/dev/vm-check`), or says why
there is nothing that could be left out."""

from collections.abc import Mapping
from dataclasses import replace

from . import exhaustion, handling, isolation
from .attack import Attack
from .walls import Proof, Wall, without

_INIT = (Wall.uids, Wall.privileges, Wall.dumpable)
_REAL_ROOT = "its payload would be root of the host"

PROOFS: Mapping[int, tuple[Proof, ...]] = {
    1: (without(Wall.kill),),
    2: (without(Wall.pids),),
    3: (without(Wall.memory),),
    4: (without(Wall.disk),),
    6: (without(Wall.nofile),),
    7: (without(Wall.fsize), without(Wall.disk)),
    8: (without(Wall.inodes),),
    9: (without(Wall.output_cap),),
    10: (without(Wall.both_streams),),
    11: (without(Wall.end_of_input),),
    12: (without(Wall.deadlines),),
    13: (without(Wall.kill),),
    14: (without(Wall.kill),),
    15: (without(Wall.kill),),
    16: (without(Wall.pidns, Wall.uids),),
    17: (without(*_INIT),),
    18: (without(*_INIT), without(Wall.closed_fds)),
    19: (without(Wall.proc_readonly, Wall.uids, Wall.userns, guest=_REAL_ROOT),),
    20: (without(Wall.proc_masks), without(Wall.pidns)),
    21: (without(Wall.seccomp),),
    22: (without(Wall.privileges), without(Wall.uids)),
    23: (without(Wall.few_devices),),
    24: (without(Wall.seccomp),),
    25: (without(Wall.netns),),
    26: (without(Wall.netns),),
    27: (without(Wall.netns),),
    28: (without(Wall.nofile),),
    29: (without(Wall.links, Wall.beneath),),
    30: (without(Wall.path_checks, Wall.beneath),),
    31: (without(Wall.archive_checks),),
    32: (without(Wall.reaping),),
    33: (without(Wall.main_pid),),
    35: (without(Wall.seccomp, Wall.userns, Wall.uids, Wall.privileges, guest="it sets the host's clock"),),
    36: (without(Wall.new_seeds),),
    37: (without(Wall.cpu_count, cpus=2),),
    38: (without(Wall.seccomp, needs="/proc/sys/dev/tty/legacy_tiocsti"),),
    39: (without(Wall.environment),),
    40: (without(Wall.reset), without(Wall.netns_renewal)),
    42: (without(Wall.release),),
    43: (without(Wall.rlimits),),
}

BEYOND: Mapping[int, str] = {
    5: "the kernel itself reclaims the cache of files; there is no wall of ours",
    34: "the kernel kills the largest process, and PID 1 is the smallest; there is no wall of ours",
    41: "tests/chaos/test_sandbox_leaks.py makes it, and shows boxes without `leash` outliving their owner",
    44: "a typed error in the place of the kernel's own refusal; nothing is gained without it",
    45: "stopped by the limits of rows 3, 9 and 12, and proven there",
}


def _complete(attack: Attack) -> Attack:
    return replace(attack, proofs=PROOFS.get(attack.row, ()), beyond=BEYOND.get(attack.row, ""))


ATTACKS = tuple(
    _complete(attack)
    for attack in sorted((*exhaustion.ROWS, *isolation.ROWS, *handling.ROWS), key=lambda each: each.row)
)
