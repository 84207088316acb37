"""Errors as problem details (RFC 9457).

Guarantees: every error, also those of the framework, is one `Problem`; a fault of ours shows an id to look
for in the log and nothing of its inside.
Does not: know which exceptions a service expects; the service says (`install`)."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tiltyard.contracts.document import Fault, InvalidDocument
from tiltyard.contracts.http import Problem
from tiltyard.telemetry.events import event_logger

log = event_logger("web")


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


Judge = Callable[[Exception], Refusal | None]
"""What a service answers an exception with; None for a fault of ours."""


def _framework(error: Exception) -> Refusal | None:
    match error:
        case Refusal():
            return error
        case StarletteHTTPException():
            return Refusal(error.status_code, str(error.detail), headers=error.headers)
        case InvalidDocument():
            return Refusal(422, f"{error.what} is not valid", faults=error.faults)
        case RequestValidationError():
            return Refusal(422, "the request's parameters are not valid", faults=_parameter_faults(error))
        case _:
            return None


def _parameter_faults(error: RequestValidationError) -> tuple[Fault, ...]:
    return tuple(
        Fault(path=".".join(map(str, row["loc"])), message=str(row["msg"]).removeprefix("Value error, "))
        for row in error.errors()
    )


def install(app: FastAPI, judge: Judge, expected: Iterable[type[Exception]]) -> None:
    """Answer the framework's errors and the service's `expected` ones, as `judge` says, with problems."""

    async def on_error(request: Request, error: Exception) -> Response:
        refusal = _framework(error) or judge(error)
        if refusal is None:
            raise error
        if type(error) is StarletteHTTPException and error.status_code in (404, 405):
            refusal.detail = (
                f"there is no {request.method} {request.url.path}; GET /openapi.json lists what there is"
            )
        if refusal.status_code >= 500:
            log.warning("web.unavailable", path=request.url.path, error=str(error)[:500])
        return answer(
            refusal.status_code,
            refusal.detail,
            instance=request.url.path,
            faults=refusal.faults,
            headers=refusal.headers,
        )

    for kind in (StarletteHTTPException, InvalidDocument, RequestValidationError, *expected):
        app.add_exception_handler(kind, on_error)


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
            log.error("web.broke", error_id=name, path=scope["path"], error=repr(error), exc_info=True)
            detail = f"the service failed; its log tells more under error_id {name}"
            await answer(500, detail, instance=scope["path"])(scope, receive, send)
