"""What the sandbox raises. Every message says what was wrong, where, and what to do.

Does not: report a payload's misbehaviour. That is an `ExecResult`, never an exception."""


class SandboxError(Exception):
    """Anything that the sandbox engine raises."""


class SandboxUnavailable(SandboxError):
    """This host cannot make sandboxes now; the message names the cure. Nothing was run outside a sandbox."""


class NodeUnhealthy(SandboxUnavailable):
    """Too much failed on this machine lately, or it is out of breath: it lends no box for a while."""

    def __init__(self, message: str, *, reason: str, retry_after: float) -> None:
        """`retry_after`: seconds until asking may help."""
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class SandboxBusy(SandboxError):
    """No box became free in time, or the box already runs a command."""


class SandboxPaused(SandboxError):
    """The box is paused: nothing can be asked of it until it is resumed, reset or given back."""


class SandboxGone(SandboxError):
    """The box was released, spoiled by a cancelled command, or died."""


class CapabilityRefused(SandboxError):
    """The backend cannot enforce what was demanded; nothing was weakened."""


class InvalidLimits(SandboxError):
    """Limits that make no sense."""


class InvalidPath(SandboxError):
    """A path that no box accepts: NUL, not UTF-8, too long, or leading out of the box's folders."""


class InvalidExec(SandboxError):
    """Arguments, environment or descriptors that no command can be started with."""


class FileFault(SandboxError):
    """The box's kernel refused a file operation.

    `error` is the errno."""

    def __init__(self, message: str, error: int) -> None:
        super().__init__(message)
        self.error = error


class FileTooLarge(SandboxError):
    """The file is larger than the caller accepts."""


class PortClosed(SandboxError):
    """Nobody in the box listens on the port."""


class ArchiveRefused(SandboxError):
    """An archive that leads out of its folder, holds what is no file or folder, or is too large."""


class ImageFault(SandboxError):
    """An image is absent, unknown or could not be made."""


class InvalidNetwork(SandboxError):
    """A network, rule or shape that makes no sense."""


class NetworkRefused(SandboxError):
    """A network that this deployment lets nobody ask for."""
