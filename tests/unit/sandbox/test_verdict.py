"""What tilt-init saw → what we call it."""

import errno
import signal

import pytest

from tiltyard.sandbox import ExecOutcome
from tiltyard.sandbox.native.verdict import lost, result
from tiltyard.sandbox.native.wire import (
    FLAG_DISK_FULL,
    FLAG_ERR_CUT,
    FLAG_OUT_CUT,
    FLAG_STUCK,
    ExitReport,
    Reason,
)

CALM = ExitReport(
    reason=Reason.exited, flags=0, code=0, signal=0, error=0, oom_kills=0, pids_hits=0, left=0, cpu_ns=10**9,
    wall_ns=2 * 10**9, peak_bytes=1 << 20, throttled_ns=0, waited_ns=0,
)  # fmt: skip


def outcome(**seen: int) -> ExecOutcome:
    return result(CALM._replace(**seen), b"", b"").outcome


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({}, ExecOutcome.ok),
        ({"code": 1}, ExecOutcome.nonzero),
        ({"reason": Reason.signalled, "code": -1, "signal": signal.SIGSEGV}, ExecOutcome.signalled),
        ({"reason": Reason.signalled, "code": -1, "signal": signal.SIGXCPU}, ExecOutcome.timeout_cpu),
        ({"reason": Reason.signalled, "code": -1, "signal": signal.SIGXFSZ}, ExecOutcome.disk_limit),
        ({"reason": Reason.signalled, "code": -1, "signal": 9, "oom_kills": 1}, ExecOutcome.oom),
        ({"code": 1, "oom_kills": 1}, ExecOutcome.oom),
        ({"code": 1, "pids_hits": 3}, ExecOutcome.pids),
        ({"code": 1, "flags": FLAG_DISK_FULL}, ExecOutcome.disk_limit),
        ({"reason": Reason.cpu}, ExecOutcome.timeout_cpu),
        ({"reason": Reason.wall}, ExecOutcome.timeout_wall),
        ({"reason": Reason.idle}, ExecOutcome.timeout_idle),
        ({"reason": Reason.output}, ExecOutcome.output_limit),
        ({"reason": Reason.killed}, ExecOutcome.signalled),
        ({"reason": Reason.spawn, "error": errno.EAGAIN}, ExecOutcome.pids),
        ({"reason": Reason.spawn, "error": errno.ENOMEM}, ExecOutcome.oom),
        ({"reason": Reason.spawn, "error": errno.ENOENT}, ExecOutcome.nonzero),
        ({"reason": Reason.spawn, "error": errno.EBADMSG}, ExecOutcome.infra_error),
        ({"flags": FLAG_STUCK}, ExecOutcome.infra_error),
        ({"reason": 99}, ExecOutcome.infra_error),
    ],
)
def test_every_end_has_one_name(seen: dict[str, int], expected: ExecOutcome) -> None:
    assert outcome(**seen) is expected


@pytest.mark.parametrize("limit", [{"oom_kills": 1}, {"pids_hits": 1}, {"flags": FLAG_DISK_FULL}])
def test_a_command_that_succeeded_is_not_blamed_on_a_limit(limit: dict[str, int]) -> None:
    assert outcome(**limit) is ExecOutcome.ok


def test_not_found_and_not_executable_have_the_codes_of_a_shell() -> None:
    for error, code in ((errno.ENOENT, 127), (errno.ENOTDIR, 127), (errno.EACCES, 126), (errno.ENOEXEC, 126)):
        assert result(CALM._replace(reason=Reason.spawn, error=error), b"", b"").exit_code == code


def test_starved_is_said_of_timeouts_alone_and_from_a_quarter_on() -> None:
    for reason, waited, expected in (
        (Reason.wall, 500_000_000, True),
        (Reason.idle, 500_000_000, True),
        (Reason.wall, 499_999_999, False),
        (Reason.exited, 10**9, False),
        (Reason.cpu, 10**9, False),
    ):
        for kind in ("waited_ns", "throttled_ns"):
            assert result(CALM._replace(reason=reason, **{kind: waited}), b"", b"").starved is expected


def test_flags_units_and_output_are_carried_over() -> None:
    seen = result(CALM._replace(flags=FLAG_OUT_CUT), b"out", b"err")
    assert (seen.stdout, seen.stderr, seen.stdout_truncated, seen.stderr_truncated) == (
        b"out",
        b"err",
        True,
        False,
    )
    assert (seen.cpu_seconds, seen.wall_seconds, seen.memory_peak_mb) == (1.0, 2.0, 1.0)
    assert result(CALM._replace(flags=FLAG_ERR_CUT, peak_bytes=0), b"", b"").stderr_truncated
    assert result(CALM._replace(peak_bytes=0), b"", b"").memory_peak_mb is None


def test_a_lost_box_is_oom_only_when_memory_killed_it() -> None:
    assert lost(b"a", b"b", oom=True, wall_seconds=1).outcome is ExecOutcome.oom
    assert lost(b"a", b"b", oom=False, wall_seconds=1).outcome is ExecOutcome.infra_error
