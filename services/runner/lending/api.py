"""`/v1/sandboxes`.

Guarantees: a sandbox is reached by its unguessable name alone; a command repeated with its Idempotency-Key
is not run twice; a stream that nobody reads any more kills its command and ends the sandbox.
Does not: authenticate; `tiltyard.web.gate` does."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from services.runner.lending.lender import Lease, LeaseEnded, Lender
from tiltyard.contracts.sandboxes import (
    Command,
    CommandEvent,
    CommandResult,
    ConnectionPage,
    Encoding,
    LentConnection,
    LentLimits,
    LentSandbox,
    Renewal,
    SandboxOrder,
    SandboxPage,
)
from tiltyard.sandbox import ExecResult, SandboxBusy, SandboxGone
from tiltyard.sandbox.backend import Stream
from tiltyard.web.body import document
from tiltyard.web.openapi import BYTES, takes
from tiltyard.web.problem import Refusal

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])
NDJSON = "application/x-ndjson"
T = TypeVar("T")
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


def lender_of(request: Request) -> Lender:
    return request.app.state.lender


Lending = Annotated[Lender, Depends(lender_of)]


@router.post("", status_code=201, openapi_extra=takes(SandboxOrder))
async def order(request: Request, lender: Lending, key: Key = None) -> LentSandbox:
    """Lend a fresh sandbox."""
    asked = await document(request, SandboxOrder, what="sandbox order")
    _same("image", asked.image, lender.pool.image)
    _same("limits", asked.limits, _limits(lender))
    try:
        lease = await lender.lend(
            asked.lease_seconds,
            wait=asked.wait_seconds,
            key=key,
            network=asked.network,
            traceparent=request.headers.get("traceparent"),
        )
    except SandboxBusy as error:
        raise Refusal(503, str(error), headers={"Retry-After": "1"}) from error
    return _view(lender, lease)


def _same(what: str, asked: object, lent: object) -> None:
    if asked is not None and asked != lent:
        raise Refusal(422, f"this runner lends sandboxes with {what} {lent}, not {asked}; leave {what} out")


@router.get("")
async def listing(lender: Lending) -> SandboxPage:
    """What is lent now."""
    stats = await lender.pool.stats()
    items = tuple(_view(lender, lease) for lease in lender.leases())
    return SandboxPage(items=items, size=stats.size, ready=stats.ready)


@router.get("/{name}")
async def show(name: str, lender: Lending) -> LentSandbox:
    """One sandbox; its lease starts anew."""
    with lender.using(name) as lease:
        return _view(lender, lease)


@router.get("/{name}/connections")
async def connections(name: str, lender: Lending) -> ConnectionPage:
    """Every connection out of it that has ended, allowed or refused, where to and how much."""
    with lender.using(name) as lease:
        return ConnectionPage(
            items=tuple(
                LentConnection(**{field: getattr(each, field) for field in LentConnection.model_fields})
                for each in lease.connections
            )
        )


@router.post("/{name}/lease", openapi_extra=takes(Renewal))
async def renew(name: str, request: Request, lender: Lending) -> LentSandbox:
    """Change the length of the lease, and start it anew."""
    asked = await document(request, Renewal, what="renewal")
    with lender.using(name) as lease:
        lease.seconds = asked.lease_seconds
    return _view(lender, lease)


@router.post("/{name}/pause")
async def pause(name: str, lender: Lending) -> LentSandbox:
    """Stop what runs in it where it is; its lease goes on. Repeating changes nothing."""
    with lender.using(name) as lease:
        await _alive(lender, lease, lease.box.pause())
    return _view(lender, lease)


@router.post("/{name}/resume")
async def resume(name: str, lender: Lending) -> LentSandbox:
    """Let it go on. Repeating changes nothing."""
    with lender.using(name) as lease:
        await _alive(lender, lease, lease.box.resume())
    return _view(lender, lease)


@router.delete("/{name}", status_code=204)
async def release(name: str, lender: Lending) -> None:
    """Destroy a sandbox; repeating it changes nothing."""
    lender.release(name)


@router.post("/{name}/exec", response_model=CommandResult, openapi_extra=takes(Command))
async def execute(name: str, request: Request, lender: Lending, key: Key = None) -> Any:
    """Run a command to its end. With `Accept: application/x-ndjson` output comes as it is written."""
    asked = await document(request, Command, what="command")
    if NDJSON in request.headers.get("accept", ""):
        lines = _stream(name, lender, asked)
        first = await anext(lines)  # what is refused before it starts is a problem, not a broken stream
        return StreamingResponse(_resumed(first, lines), media_type=NDJSON)
    with lender.using(name) as lease:
        return _result(await _alive(lender, lease, _command(lease, asked, key)), asked.encoding)


async def _command(lease: Lease, asked: Command, key: str | None) -> ExecResult:
    """Once for each key, and to its end even when the caller goes away."""
    if key is not None and lease.command is not None and lease.command[0] == key:
        return await asyncio.shield(lease.command[1])
    running = asyncio.create_task(_exec(lease, asked))
    if key is not None:
        lease.command = (key, running)
    return await asyncio.shield(running)


async def _exec(lease: Lease, asked: Command, **options: Any) -> ExecResult:
    return await lease.box.exec(
        asked.argv,
        stdin=asked.stdin.encode(),
        env=asked.env,
        cwd=asked.cwd,
        files=asked.files,
        cpu_seconds=asked.cpu_seconds,
        wall_seconds=asked.wall_seconds,
        idle_seconds=asked.idle_seconds,
        output_bytes=asked.output_bytes,
        **options,
    )


async def _resumed(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for line in rest:
        yield line


async def _stream(name: str, lender: Lender, asked: Command) -> AsyncIterator[str]:
    events: asyncio.Queue[CommandEvent | None] = asyncio.Queue()

    def on_output(stream: Stream, data: bytes) -> None:
        events.put_nowait(CommandEvent(stream=stream, data=_shown(data, asked.encoding)))

    with lender.using(name) as lease:
        running = asyncio.create_task(_exec(lease, asked, on_output=on_output))
        running.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event.model_dump_json(exclude_defaults=True) + "\n"
            result = await _alive(lender, lease, running)
            yield CommandEvent(result=_result(result, asked.encoding)).model_dump_json() + "\n"
        finally:
            if running.cancel():
                lender.release(name, "whoever read the output of its command went away")


async def _alive(lender: Lender, lease: Lease, use: Awaitable[T]) -> T:
    """A sandbox that died under its holder is told so once more, and is not lent any longer."""
    try:
        return await use
    except SandboxGone as error:
        lender.release(lease.id, str(error))
        raise LeaseEnded(f"sandbox {lease.id} is gone: {error}") from error


@router.put("/{name}/files/{path:path}", status_code=204, openapi_extra=BYTES)
async def write(
    name: str,
    path: str,
    request: Request,
    lender: Lending,
    mode: Annotated[str, Query(pattern=r"^[0-7]{3}$")] = "644",
) -> None:
    """Replace a file; its parents are made."""
    data = await request.body()
    with lender.using(name) as lease:
        await _alive(lender, lease, lease.box.write(path, data, int(mode, 8)))


@router.get("/{name}/files/{path:path}", response_class=Response)
async def read(
    name: str,
    path: str,
    lender: Lending,
    max_bytes: Annotated[int, Query(ge=0, le=64_000_000)] = 1_000_000,
) -> Response:
    """A regular file's bytes; no symlink is followed."""
    with lender.using(name) as lease:
        data = await _alive(lender, lease, lease.box.read(path, max_bytes))
    return Response(data, media_type="application/octet-stream")


def _limits(lender: Lender) -> LentLimits:
    limits = lender.pool.limits
    return LentLimits(**{name: getattr(limits, name) for name in LentLimits.model_fields})


def _view(lender: Lender, lease: Lease) -> LentSandbox:
    return LentSandbox(
        id=lease.id,
        image=lender.pool.image,
        limits=_limits(lender),
        home=lease.box.home,
        lease_seconds=lease.seconds,
        expires_in_seconds=lender.left(lease),
        network=lease.network,
        paused=lease.box.paused,
    )


def _result(result: ExecResult, encoding: Encoding) -> CommandResult:
    streams: dict[str, Any] = {
        "stdout": _shown(result.stdout, encoding),
        "stderr": _shown(result.stderr, encoding),
    }
    plain: dict[str, Any] = {
        name: getattr(result, name)
        for name in CommandResult.model_fields
        if name not in {*streams, "encoding"}
    }
    return CommandResult(**plain, **streams, encoding=encoding)


def _shown(data: bytes, encoding: Encoding) -> str:
    return base64.b64encode(data).decode() if encoding == "base64" else data.decode(errors="replace")
