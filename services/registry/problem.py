"""Errors as problem details (RFC 9457).

Guarantees: every error, also those of the framework, is one `Problem`; a fault of ours shows an id to look
for in the log and nothing of its inside.
Does not: decide what is an error."""

import uuid
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tiltyard.contracts.document import Fault, InvalidDocument
from tiltyard.contracts.http import Problem
from tiltyard.objects import ObjectError, ObjectMissing, ObjectStoreUnavailable
from tiltyard.store.idempotency import OtherRequest
from tiltyard.store.policies import NoSuchPolicy
from tiltyard.store.runs import NameTaken, NoSuchRun, NothingToRun
from tiltyard.telemetry.events import event_logger

log = event_logger("registry")
RETRY_SECONDS = "2"


class Refusal(HTTPException):
    """An error with its detail and, for a document, its faults."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        faults: tuple[Fault, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.faults = faults


def missing(what: str, name: str, hint: str = "") -> Refusal:
    """404 for a named thing."""
    return Refusal(404, f"there is no {what} {name!r}{f'; {hint}' if hint else ''}")


def answer(
    status: int,
    detail: str,
    *,
    instance: str = "",
    faults: tuple[Fault, ...] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem as a response."""
    problem = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=detail, instance=instance, faults=faults
    )
    return Response(
        problem.model_dump_json(),
        status,
        dict(headers or {}),
        media_type="application/problem+json",
    )


def refuse(error: Exception) -> Refusal | None:
    """What an expected exception is answered with; None for a fault of ours."""
    match error:
        case Refusal():
            return error
        case StarletteHTTPException():
            return Refusal(error.status_code, str(error.detail), headers=error.headers)
        case InvalidDocument():
            return Refusal(422, f"{error.what} is not valid", faults=error.faults)
        case RequestValidationError():
            return Refusal(422, "the request's parameters are not valid", faults=_parameter_faults(error))
        case OtherRequest():
            return Refusal(
                409, "this Idempotency-Key was used for another request; take a new key for new content"
            )
        case NameTaken():
            return Refusal(409, str(error))
        case NoSuchRun() | ObjectMissing():
            return Refusal(404, str(error))
        case NothingToRun() | NoSuchPolicy():
            return Refusal(422, str(error))
        case _:
            return _unavailable(error)


def _unavailable(error: Exception) -> Refusal | None:
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    ):
        detail = "the database does not answer; nothing was changed, try again"
        return Refusal(503, detail, headers={"Retry-After": RETRY_SECONDS})
    if isinstance(error, ObjectStoreUnavailable):
        detail = "the object store does not answer; try again"
        return Refusal(503, detail, headers={"Retry-After": RETRY_SECONDS})
    if isinstance(error, ObjectError):
        return Refusal(502, "the object store refused; see the registry's log")
    return None


def _parameter_faults(error: RequestValidationError) -> tuple[Fault, ...]:
    return tuple(
        Fault(path=".".join(map(str, row["loc"])), message=str(row["msg"]).removeprefix("Value error, "))
        for row in error.errors()
    )


async def _on_refusal(request: Request, error: Exception) -> Response:
    refusal = refuse(error)
    if refusal is None:
        raise error
    if type(error) is StarletteHTTPException and error.status_code in (404, 405):
        refusal.detail = (
            f"there is no {request.method} {request.url.path}; GET /openapi.json lists what there is"
        )
    if refusal.status_code >= 500:
        log.warning("registry.unavailable", path=request.url.path, error=str(error)[:500])
    return answer(
        refusal.status_code,
        refusal.detail,
        instance=request.url.path,
        faults=refusal.faults,
        headers=refusal.headers,
    )


EXPECTED = (
    StarletteHTTPException,
    InvalidDocument,
    RequestValidationError,
    OtherRequest,
    NameTaken,
    NoSuchRun,
    NothingToRun,
    NoSuchPolicy,
    ObjectError,
    DBAPIError,
    PoolTimeout,
)


def install(app: FastAPI) -> None:
    """Answer every expected error with its problem."""
    for kind in EXPECTED:
        app.add_exception_handler(kind, _on_refusal)


class LastResort:
    """Middleware: an exception that nothing expected becomes a 500 with an id, and a line in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watch(message: Mapping[str, object]) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(dict(message))

        try:
            await self.app(scope, receive, watch)
        except Exception as error:  # the outermost edge: whatever broke is logged and answered
            if scope["type"] != "http" or started:
                raise
            name = uuid.uuid4().hex[:12]
            log.error("registry.broke", error_id=name, path=scope["path"], error=repr(error), exc_info=True)
            detail = f"the registry failed; its log tells more under error_id {name}"
            await answer(500, detail, instance=scope["path"])(scope, receive, send)
