"""The defences that a test build can leave out, one by one.

Guarantees: a wall that is left out is the only thing that differs from what is used.
Does not: leave any out of what is used: a wall is left out when a test compiles helpers without it."""

from dataclasses import dataclass
from enum import StrEnum


class Wall(StrEnum):
    """A defence. Its value names it in C: -DTILTYARD_WITHOUT_<VALUE> (native/c/without.h)."""

    seccomp = "SECCOMP"
    """the filter of system calls"""
    privileges = "PRIVILEGES"
    """capabilities and the bounding set are given up, and new ones refused"""
    dumpable = "DUMPABLE"
    """PID 1's memory and descriptors are nobody's"""
    uids = "UIDS"
    """the payload has another uid than its PID 1"""
    userns = "USERNS"
    """a user namespace, so that root inside is nobody outside"""
    pidns = "PIDNS"
    """a PID namespace"""
    netns = "NETNS"
    """a network namespace"""
    netns_renewal = "NETNS_RENEWAL"
    """a network namespace that carried anything is not used again"""
    proc_masks = "PROC_MASKS"
    """files of /proc that tell of the host are covered"""
    proc_readonly = "PROC_READONLY"
    """/proc is mounted read-only"""
    few_devices = "FEW_DEVICES"
    """no device but the harmless six exists"""
    closed_fds = "CLOSED_FDS"
    """a payload gets the descriptors that it was given and no other"""
    memory = "MEMORY"
    """the memory limit of the cgroup"""
    pids = "PIDS"
    """the process limit of the cgroup"""
    disk = "DISK"
    """the size of the tmpfs"""
    inodes = "INODES"
    """the inodes of the tmpfs"""
    nofile = "NOFILE"
    """the limit of open descriptors"""
    fsize = "FSIZE"
    """the limit of a file's size"""
    rlimits = "RLIMITS"
    """the limits of core dumps, locked memory, priorities and queues"""
    output_cap = "OUTPUT_CAP"
    """output above its cap ends a command"""
    deadlines = "DEADLINES"
    """CPU, wall and idle time end a command"""
    kill = "KILL"
    """whatever a command leaves running is killed at its end"""
    reaping = "REAPING"
    """PID 1 reaps orphans"""
    main_pid = "MAIN_PID"
    """only the command's own end is its end"""
    end_of_input = "END_OF_INPUT"
    """a command without input finds its end at once"""
    both_streams = "BOTH_STREAMS"
    """both output pipes are drained together"""
    links = "LINKS"
    """no symlink is followed for a caller"""
    beneath = "BENEATH"
    """no path leads a caller out of the box's folders"""
    new_seeds = "NEW_SEEDS"
    """a copy of the warm interpreter has random numbers of its own"""
    leash = "LEASH"
    """PID 1 ends when its owner or tilt-host does"""

    path_checks = "path_checks"
    """Python: a path is looked at before it is sent"""
    archive_checks = "archive_checks"
    """Python: an archive is looked through before anything is written"""
    environment = "environment"
    """Python: a command's environment is made, not inherited"""
    cpu_count = "cpu_count"
    """Python: a command is told how many CPUs it may use"""
    reset = "reset"
    """Python: a reset is a fresh box"""
    release = "release"
    """Python: a box that is given back, for whatever reason, is destroyed"""

    @property
    def native(self) -> bool:
        """Left out by the compiler; the others by boxes that do without (`weakened`)."""
        return self.value.isupper()


@dataclass(frozen=True, slots=True)
class Proof:
    """The attack succeeds in boxes without these walls: with them, they are what stops it.

    Several together: each of them alone would do."""

    without: frozenset[Wall]
    guest: str = ""
    """why it is tried in a throwaway virtual machine only; empty: anywhere"""
    needs: str = ""
    """a file of the kernel that must read 1, as the kernel itself refuses otherwise; empty: none"""
    cpus: int = 1
    """how many CPUs the machine must have"""

    def __str__(self) -> str:
        return " and ".join(sorted(wall.name for wall in self.without))


def without(*walls: Wall, guest: str = "", needs: str = "", cpus: int = 1) -> Proof:
    return Proof(frozenset(walls), guest, needs, cpus)
