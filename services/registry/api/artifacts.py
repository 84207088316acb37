"""Routes of artifacts: uploads named by their content, and the objects of a run.

Guarantees: an upload is streamed to disk while it is hashed, never held in memory; a download is verified
before its first byte is sent; an object is read only from beneath its run's own prefix.
Does not: list or delete what is stored."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from starlette.background import BackgroundTask
from starlette.responses import FileResponse

from services.registry.api.runs import RunId
from services.registry.ports import Ports, Using
from tiltyard.contracts.http import ArtifactView
from tiltyard.contracts.records import artifact_key
from tiltyard.objects import InvalidKey, ObjectMissing
from tiltyard.web.openapi import BYTES
from tiltyard.web.problem import Refusal, missing

router = APIRouter(prefix="/v1", tags=["artifacts"])
Digest = Annotated[str, PathParameter(pattern=r"^sha256:[0-9a-f]{64}$")]


@router.put(
    "/artifacts",
    status_code=201,
    openapi_extra=BYTES,
)
async def upload(request: Request, ports: Using) -> ArtifactView:
    """Store the body, of whatever type; repeating it changes nothing. The answer holds its digest."""
    async with _place(ports), _scratch() as path:
        digest, size = await _spool(request, path)
        name = f"sha256:{digest}"
        await asyncio.to_thread(ports.objects.put, artifact_key(name), path, if_absent=True)
    return ArtifactView(digest=name, size=size)


@asynccontextmanager
async def _place(ports: Ports) -> AsyncIterator[None]:
    """One of the few uploads at once, so that they cannot fill the disk together."""
    if ports.uploads.locked():
        raise Refusal(429, "too many uploads at once; try again", headers={"Retry-After": "2"})
    async with ports.uploads:
        yield


@asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    handle = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="tiltyard-upload-")
    try:
        yield Path(handle.name) / "body"
    finally:
        handle.cleanup()


async def _spool(request: Request, path: Path) -> tuple[str, int]:
    """Hex SHA-256 and size of the body, which now lies at `path`."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        async for chunk in request.stream():
            digest.update(chunk)
            size += len(chunk)
            await asyncio.to_thread(file.write, chunk)
    return digest.hexdigest(), size


@router.get("/artifacts/{digest}", response_class=FileResponse)
async def download(digest: Digest, ports: Using) -> FileResponse:
    """The bytes of an uploaded artifact."""
    return await _send(ports, artifact_key(digest), digest)


@router.get("/runs/{reference:path}/objects/{name:path}", response_class=FileResponse)
async def run_object(run_id: RunId, name: str, ports: Using) -> FileResponse:
    """One object of a run, by its key beneath the run: `rollouts/<id>/<fence>/attempt.json.gz`."""
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        raise Refusal(422, f"{name[:200]!r} is no key beneath a run; write it like policies/3/config.json")
    return await _send(ports, f"runs/{run_id}/{name}", name)


async def _send(ports: Ports, key: str, name: str) -> FileResponse:
    handle = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="tiltyard-download-")
    try:
        path = Path(handle.name) / "object"
        info = await asyncio.to_thread(ports.objects.get_to, key, path)
    except ObjectMissing as error:
        handle.cleanup()
        raise missing("object", name) from error
    except InvalidKey as error:
        handle.cleanup()
        raise Refusal(422, str(error)) from error
    except BaseException:
        handle.cleanup()
        raise
    return FileResponse(
        path,
        media_type="application/octet-stream",
        headers={"ETag": f'"{info.sha256}"', "Content-Disposition": "attachment"},
        background=BackgroundTask(handle.cleanup),
    )
