"""Failures as OpenAI's error objects.

Guarantees: each failure has one status and code, and says what to do; internals stay in the log.
Does not: decide what is a failure.

Source: https://platform.openai.com/docs/guides/error-codes."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from services.rollout.engine import EngineClosed, EngineFailed, InvalidPrompt, Overloaded, PromptTooLong
from services.rollout.versions import NoSuchModel, NothingPublished, NotLoaded
from tiltyard.contracts.document import InvalidDocument


class BadBody(ValueError):
    """The body is no JSON object, or too large."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a client is told."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after: int | None = None
    """Seconds."""

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


_KNOWN: dict[type[Exception], tuple[int, str, str, str | None, int | None]] = {
    NoSuchModel: (404, "invalid_request_error", "model_not_found", "model", None),
    NothingPublished: (503, "server_error", "no_policy_version", "model", 1),
    NotLoaded: (503, "server_error", "policy_version_not_loaded", "model", 5),
    PromptTooLong: (400, "invalid_request_error", "context_length_exceeded", "prompt", None),
    InvalidPrompt: (400, "invalid_request_error", "invalid_prompt", "prompt", None),
    Overloaded: (429, "rate_limit_error", "overloaded", None, 1),
    EngineFailed: (500, "server_error", "engine_failed", None, None),
    EngineClosed: (503, "server_error", "shutting_down", None, 5),
}
FORESEEN = (InvalidDocument, BadBody, SQLAlchemyError, *_KNOWN)


def refusal(error: Exception) -> Refusal | None:
    """What a failure is told as; None for one that nobody foresaw."""
    if isinstance(error, InvalidDocument):
        param = error.faults[0].path.split(".")[0] if error.faults else ""
        message = "; ".join(f"{f.path}: {f.message}" if f.path else f.message for f in error.faults)
        return _invalid(400, message, param or None)
    if isinstance(error, BadBody):
        return _invalid(error.status, str(error), None)
    if isinstance(error, SQLAlchemyError):
        message = "the database cannot be asked which policy versions there are; try again later"
        return Refusal(
            status=503, type="server_error", code="database_unavailable", message=message, retry_after=2
        )
    if type(error) in _KNOWN:
        status, kind, code, param, wait = _KNOWN[type(error)]
        return Refusal(status=status, type=kind, code=code, message=str(error), param=param, retry_after=wait)
    return None


def _invalid(status: int, message: str, param: str | None) -> Refusal:
    return Refusal(status=status, type="invalid_request_error", code=None, message=message, param=param)


UNFORESEEN = Refusal(
    status=500,
    type="server_error",
    code="internal_error",
    message="the rollout service failed on this request; its log has the reason",
)
