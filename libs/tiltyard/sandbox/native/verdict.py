"""What tilt-init saw → what we call it. Pure.

Guarantees: only a command that failed is blamed on a limit; whatever is not understood is `infra_error`."""

import errno
import os
import signal

from tiltyard.sandbox.result import ExecOutcome, ExecResult

from .wire import FLAG_DISK_FULL, FLAG_ERR_CUT, FLAG_OUT_CUT, FLAG_STUCK, ExitReport, Reason

_STARVED_SHARE = 0.25
_NOT_FOUND = {errno.ENOENT, errno.ENOTDIR}
_TIMEOUTS = {
    Reason.cpu: (ExecOutcome.timeout_cpu, "used its CPU time"),
    Reason.wall: (ExecOutcome.timeout_wall, "ran out of time"),
    Reason.idle: (ExecOutcome.timeout_idle, "neither wrote nor computed"),
    Reason.output: (ExecOutcome.output_limit, "wrote more than it may"),
}


def verdict(report: ExitReport) -> tuple[ExecOutcome, int | None, str]:
    """Outcome, exit code, one line for people."""
    if report.flags & FLAG_STUCK:
        return ExecOutcome.infra_error, None, "processes could not be killed; the box must go"
    if report.reason in _TIMEOUTS:
        outcome, detail = _TIMEOUTS[Reason(report.reason)]
        return outcome, None, detail
    if report.reason == Reason.exited and report.code == 0:
        return (
            ExecOutcome.ok,
            0,
            f"{report.oom_kills} processes were killed for memory" if report.oom_kills else "",
        )
    if report.reason == Reason.spawn:
        return _not_started(report.error)
    if report.reason == Reason.killed:
        return ExecOutcome.signalled, None, "killed by request"
    if report.reason not in (Reason.exited, Reason.signalled):
        return ExecOutcome.infra_error, None, f"ended for a reason that is not known: {report.reason}"
    return _failed(report)


def _not_started(error: int) -> tuple[ExecOutcome, int | None, str]:
    reason = os.strerror(error)
    if error == errno.EAGAIN:
        return ExecOutcome.pids, None, f"could not be started: {reason}"
    if error == errno.ENOMEM:
        return ExecOutcome.oom, None, f"could not be started: {reason}"
    if error in (errno.EBADMSG, errno.EBUSY, errno.EBADF, errno.EMFILE):
        return ExecOutcome.infra_error, None, f"could not be started: {reason}"
    code = 127 if error in _NOT_FOUND else 126
    return (
        ExecOutcome.nonzero,
        code,
        f"could not be started: {reason} (the command, its interpreter or its folder)",
    )


def _failed(report: ExitReport) -> tuple[ExecOutcome, int | None, str]:
    code = report.code if report.reason == Reason.exited else None
    if report.oom_kills:
        return ExecOutcome.oom, code, "killed at the memory limit"
    if report.signal == signal.SIGXCPU:
        return ExecOutcome.timeout_cpu, None, "used its CPU time"
    if report.signal == signal.SIGXFSZ:
        return ExecOutcome.disk_limit, None, "wrote a file above the largest size"
    if report.pids_hits:
        return (
            ExecOutcome.pids,
            code,
            f"failed after {report.pids_hits} forks were refused at the process limit",
        )
    if report.flags & FLAG_DISK_FULL:
        return ExecOutcome.disk_limit, code, "failed with its disk full"
    if code is None:
        return ExecOutcome.signalled, None, signal.strsignal(report.signal) or f"signal {report.signal}"
    return ExecOutcome.nonzero, code, ""


def _starved(report: ExitReport) -> bool:
    if report.reason not in (Reason.wall, Reason.idle):
        return False
    return report.throttled_ns + report.waited_ns >= _STARVED_SHARE * max(report.wall_ns, 1)


def result(report: ExitReport, stdout: bytes, stderr: bytes) -> ExecResult:
    outcome, code, detail = verdict(report)
    return ExecResult(
        outcome=outcome,
        exit_code=code,
        signal=report.signal or None,
        stdout=stdout,
        stderr=stderr,
        stdout_truncated=bool(report.flags & FLAG_OUT_CUT),
        stderr_truncated=bool(report.flags & FLAG_ERR_CUT),
        cpu_seconds=report.cpu_ns / 1e9,
        wall_seconds=report.wall_ns / 1e9,
        memory_peak_mb=report.peak_bytes / (1 << 20) if report.peak_bytes else None,
        starved=_starved(report),
        detail=detail,
    )


def lost(stdout: bytes, stderr: bytes, *, oom: bool, wall_seconds: float) -> ExecResult:
    """The end of a command whose box died with it."""
    return ExecResult(
        outcome=ExecOutcome.oom if oom else ExecOutcome.infra_error,
        exit_code=None,
        signal=None,
        stdout=stdout,
        stderr=stderr,
        stdout_truncated=False,
        stderr_truncated=False,
        cpu_seconds=0.0,
        wall_seconds=wall_seconds,
        memory_peak_mb=None,
        starved=False,
        detail="the memory limit killed the whole box" if oom else "the box died while the command ran",
    )
