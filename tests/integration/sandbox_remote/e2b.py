"""A stand-in for E2B: its control plane and envd, as far as they are used, over real processes and files.

Written from e2b-dev/E2B `spec/openapi.yml` and `spec/envd`, e2b-dev/infra `packages/envd` (August 2026) and
E2B's Python client 2.63, which creates, runs, writes, reads, lists and kills here without noticing. A
sandbox is a folder; `/home/user` in arguments and folders of commands means it, since nothing is mounted."""

# ruff: noqa: ASYNC240 (small files of a test, on its own loop)

import asyncio
import base64
import json
import os
import secrets
import shutil
import signal
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from tests.integration.sandbox_remote.faults import Faults
from tests.integration.sandbox_remote.sessions import kill_session

HOME = "/home/user"
PAGE = 2
"""smaller than any test's number, so that pages are turned"""


@dataclass
class Machine:
    id: str
    token: str
    metadata: dict[str, str]
    ends: float
    home: Path
    document: dict[str, Any]
    processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    groups: set[int] = field(default_factory=set)
    streams: list[web.Request] = field(default_factory=list)
    paused: bool = False


class E2B:
    """Running sandboxes, and what went wrong on purpose."""

    def __init__(self, folder: Path, key: str = "e2b_secret") -> None:
        self.key = key
        self.faults = Faults()
        self.machines: dict[str, Machine] = {}
        self.made: list[dict[str, Any]] = []
        self.size = {"cpuCount": 1, "memoryMB": 256, "diskSizeMB": 64}
        self.cut_after = 0
        """cut a command's stream after so many events; 0: never"""
        self.url = ""
        self.is_old = False
        """knows the first version of a creation alone"""
        self._answers: dict[str, bytes] = {}
        self._folder = folder
        self._running: set[asyncio.Future[None]] = set()

    def vanish(self, ident: str) -> None:
        """As when its time is over: it is killed, and nobody knows it any more."""
        machine = self.machines.pop(ident)
        for group in machine.groups:
            kill_session(group)
        for request in machine.streams:
            if request.transport is not None:
                request.transport.abort()
        shutil.rmtree(machine.home)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["E2B"]:
        app = web.Application(middlewares=[self.faults.middleware], client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/sandboxes", self._create),
                web.post("/v2/sandboxes", self._create_once),
                web.get("/v2/sandboxes", self._list),
                web.get("/sandboxes/{id}", self._get),
                web.delete("/sandboxes/{id}", self._kill),
                web.post("/sandboxes/{id}/timeout", self._timeout),
                web.post("/sandboxes/{id}/connect", self._connect),
                web.post("/sandboxes/{id}/pause", self._pause),
                web.post("/process.Process/Start", self._start),
                web.post("/process.Process/{name}", self._process),
                web.post("/filesystem.Filesystem/{name}", self._filesystem),
                web.get("/files", self._download),
                web.post("/files", self._upload),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*runner.addresses[0])
        try:
            yield self
        finally:
            for ident in tuple(self.machines):
                self.vanish(ident)
            await asyncio.gather(*self._running, return_exceptions=True)
            await runner.cleanup()

    # The control plane.

    def _admit(self, request: web.Request) -> None:
        if request.headers.get("X-API-Key") != self.key:
            text = json.dumps({"code": 401, "message": f"no such key: {request.headers.get('X-API-Key')}"})
            raise web.HTTPUnauthorized(text=text, content_type="application/json")

    def _machine(self, request: web.Request) -> Machine:
        self._admit(request)
        for ident, machine in tuple(self.machines.items()):
            if machine.ends < time.time() and not machine.paused:
                self.vanish(ident)
        ident = request.match_info["id"]
        if ident not in self.machines:
            text = json.dumps({"code": 404, "message": f'sandbox "{ident}" not found'})
            raise web.HTTPNotFound(text=text, content_type="application/json")
        return self.machines[ident]

    async def _create_once(self, request: web.Request) -> web.Response:
        """The second version: always secured, and the same sandbox for the same key."""
        self._admit(request)
        if self.is_old:
            return web.json_response({"code": 405, "message": "method not allowed"}, status=405)
        key = request.headers.get("Idempotency-Key", "")
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"), key
        wanted = await request.json()
        assert "secure" not in wanted
        if key not in self._answers:
            answer = self._make(wanted | {"secure": True})
            if not key or answer.status != 201:
                return answer
            assert isinstance(answer.body, bytes)
            self._answers[key] = answer.body
        return web.Response(body=self._answers[key], status=201, content_type="application/json")

    async def _create(self, request: web.Request) -> web.Response:
        self._admit(request)
        return self._make(await request.json())

    def _make(self, wanted: dict[str, Any]) -> web.Response:
        if wanted["templateID"] != "base":
            return web.json_response({"code": 404, "message": "template not found"}, status=404)
        ident = "i" + secrets.token_hex(8)
        home = self._folder / ident
        home.mkdir()
        made = {"templateID": "base", "sandboxID": ident, "clientID": "none", "envdVersion": "0.6.0"}
        token = secrets.token_hex(16)
        if wanted.get("secure"):
            made["envdAccessToken"] = token
        self.made.append(wanted)
        ends = time.time() + wanted.get("timeout", 15)
        self.machines[ident] = Machine(ident, token, wanted.get("metadata", {}), ends, home, made)
        return web.json_response(made, status=201)

    def _detail(self, machine: Machine) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat()
        state = "paused" if machine.paused else "running"
        return {**machine.document, **self.size, "metadata": machine.metadata, "state": state,
                "startedAt": now, "endAt": now} | {"envdAccessToken": None}  # fmt: skip

    async def _list(self, request: web.Request) -> web.Response:
        self._admit(request)
        wanted = dict(parse_qsl(request.query.get("metadata", "")))
        fit = [
            self._detail(each)
            for each in self.machines.values()
            if all(each.metadata.get(name) == value for name, value in wanted.items())
        ]
        start = int(request.query.get("nextToken", "0"))
        more = {"X-Next-Token": str(start + PAGE)} if len(fit) > start + PAGE else {}
        return web.json_response(fit[start : start + PAGE], headers=more)

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._detail(self._machine(request)))

    async def _kill(self, request: web.Request) -> web.Response:
        self.vanish(self._machine(request).id)
        return web.Response(status=204)

    async def _pause(self, request: web.Request) -> web.Response:
        machine = self._machine(request)
        if machine.paused:
            return web.json_response({"code": 409, "message": "sandbox cannot be paused"}, status=409)
        machine.paused = True
        return web.Response(status=204)

    async def _timeout(self, request: web.Request) -> web.Response:
        if self._machine(request).paused:
            return web.json_response({"code": 404, "message": "sandbox is not running"}, status=404)
        self._machine(request).ends = time.time() + (await request.json())["timeout"]
        return web.Response(status=204)

    async def _connect(self, request: web.Request) -> web.Response:
        machine = self._machine(request)
        machine.ends = max(machine.ends, time.time() + (await request.json())["timeout"])
        resumed, machine.paused = machine.paused, False
        return web.json_response(machine.document, status=201 if resumed else 200)

    # envd, behind the sandbox proxy.

    def _inside(self, request: web.Request) -> Machine:
        ident = request.headers.get("E2b-Sandbox-Id", "")
        known = ident in self.machines and not self.machines[ident].paused
        if request.headers.get("E2b-Sandbox-Port") != "49983" or not known:
            document = {"sandboxId": ident, "message": "The sandbox was not found", "code": 502}
            raise web.HTTPBadGateway(text=json.dumps(document), content_type="application/json")
        machine = self.machines[ident]
        if request.headers.get("X-Access-Token") != machine.token:
            text = json.dumps({"code": "unauthenticated", "message": "wrong token"})
            raise web.HTTPUnauthorized(text=text, content_type="application/json")
        basic = base64.b64decode(request.headers.get("Authorization", "").removeprefix("Basic "))
        if (request.query.get("username") or basic.decode().rstrip(":")) != "user":
            text = json.dumps({"code": "unauthenticated", "message": "no such user"})
            raise web.HTTPUnauthorized(text=text, content_type="application/json")
        return machine

    @staticmethod
    def _local(machine: Machine, path: str) -> str:
        return path.replace(HOME, str(machine.home))

    async def _start(self, request: web.Request) -> web.StreamResponse:
        machine = self._inside(request)
        assert request.headers["Content-Type"] == "application/connect+json"
        body = await request.read()
        flags, size = struct.unpack_from(">BI", body)
        assert (flags, size) == (0, len(body) - 5)
        wanted = json.loads(body[5:])
        stream = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await stream.prepare(request)
        machine.streams.append(request)
        deadline = int(request.headers.get("Connect-Timeout-Ms", "0")) / 1000 or None
        try:
            async with asyncio.timeout(deadline):
                running = asyncio.ensure_future(self._run(machine, wanted, request, stream))
                self._running.add(running)
                running.add_done_callback(self._running.discard)
                await running
        except TimeoutError:
            await _last(stream, {"error": {"code": "deadline_exceeded", "message": "too late"}})
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            machine.streams.remove(request)
        return stream

    async def _run(
        self, machine: Machine, wanted: dict[str, Any], request: web.Request, stream: web.StreamResponse
    ) -> None:
        order = wanted["process"]
        folder = self._local(machine, order.get("cwd") or HOME)
        if not os.path.isdir(folder):
            error = {"code": "invalid_argument", "message": f"cwd '{order['cwd']}' does not exist"}
            await _last(stream, {"error": error})
            return
        process = await asyncio.create_subprocess_exec(
            order["cmd"],
            *(self._local(machine, word) for word in order.get("args", [])),
            cwd=folder,
            env={"PATH": os.environ["PATH"], **order.get("envs", {})},
            stdin=asyncio.subprocess.PIPE if wanted.get("stdin") else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        machine.processes[process.pid] = process
        machine.groups.add(process.pid)
        await _event(stream, {"start": {"pid": process.pid}})
        await _event(stream, {"keepalive": {}})
        sent = 0

        async def pump(name: str, source: asyncio.StreamReader) -> None:
            nonlocal sent
            while chunk := await source.read(32 << 10):
                await _event(stream, {"data": {name: base64.b64encode(chunk).decode()}})
                sent += 1
                if self.cut_after and sent >= self.cut_after and request.transport is not None:
                    request.transport.abort()
                    raise ConnectionResetError

        assert process.stdout is not None
        assert process.stderr is not None
        try:
            await asyncio.gather(pump("stdout", process.stdout), pump("stderr", process.stderr))
            code = await process.wait()
        finally:
            kill_session(process.pid)
            await process.wait()
            machine.processes.pop(process.pid, None)
            process._transport.close()  # type: ignore[attr-defined] # its pipes, too
        if code >= 0:
            end = {"exited": True, "status": f"exit status {code}", **({"exitCode": code} if code else {})}
        else:
            end = {"exitCode": -1, "status": f"signal: {_go_name(-code)}"}
        await _event(stream, {"end": end})
        await _last(stream, {})

    async def _process(self, request: web.Request) -> web.Response:
        machine = self._inside(request)
        wanted = await request.json()
        process = machine.processes.get(wanted["process"]["pid"])
        if process is None:
            return web.json_response({"code": "not_found", "message": "no such process"}, status=404)
        name = request.match_info["name"]
        if name == "SendSignal":
            assert wanted["signal"] == "SIGNAL_SIGKILL"
            process.kill()
        elif name == "SendInput":
            assert process.stdin is not None
            process.stdin.write(base64.b64decode(wanted["input"]["stdin"]))
            await process.stdin.drain()
        elif name == "CloseStdin":
            assert process.stdin is not None
            process.stdin.close()
        return web.json_response({})

    async def _filesystem(self, request: web.Request) -> web.Response:
        machine = self._inside(request)
        name = request.match_info["name"]
        path = Path(self._local(machine, (await request.json())["path"]))
        if name == "MakeDir":
            if path.is_dir():
                return _connect_error(409, "already_exists", "directory already exists")
            path.mkdir(parents=True)
            return web.json_response({"entry": _entry(path)})
        if not os.path.lexists(path):
            return _connect_error(404, "not_found", "path not found")
        if name == "Stat":
            return web.json_response({"entry": _entry(path)})
        if not path.is_dir():
            return _connect_error(400, "invalid_argument", "path is not a directory")
        return web.json_response({"entries": [_entry(each) for each in path.iterdir()]})

    async def _download(self, request: web.Request) -> web.Response:
        path = Path(self._local(self._inside(request), request.query["path"]))
        if path.is_dir():
            return web.json_response({"code": 400, "message": "path is a directory"}, status=400)
        if not path.exists():
            return web.json_response({"code": 404, "message": "path does not exist"}, status=404)
        return web.Response(body=path.read_bytes())

    async def _upload(self, request: web.Request) -> web.Response:
        path = Path(self._local(self._inside(request), request.query["path"]))
        form = await request.post()
        if path.is_dir():
            return web.json_response({"code": 400, "message": "path is a directory"}, status=400)
        path.parent.mkdir(parents=True, exist_ok=True)
        uploaded = form["file"]
        assert isinstance(uploaded, web.FileField)
        path.write_bytes(uploaded.file.read())
        return web.json_response([{"path": str(path), "name": path.name, "type": "file"}])


def _connect_error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)


def _entry(path: Path) -> dict[str, Any]:
    """Fields that are zero are left out, and 64-bit numbers are texts, as protobuf's JSON has them."""
    found = path.lstat()
    kind = "DIRECTORY" if path.is_dir() else "FILE"
    entry: dict[str, Any] = {
        "name": path.name,
        "type": f"FILE_TYPE_{kind}",
        "path": str(path),
        "mode": found.st_mode & 0o777,
        "modifiedTime": datetime.fromtimestamp(found.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.123456789Z"),
    }
    if found.st_size:
        entry["size"] = str(found.st_size)
    if path.is_symlink():
        entry["symlinkTarget"] = os.readlink(path)
    return entry


def _go_name(number: int) -> str:
    return {9: "killed", 11: "segmentation fault", 24: "CPU time limit exceeded",
            25: "file size limit exceeded"}.get(number, signal.Signals(number).name)  # fmt: skip


async def _send(stream: web.StreamResponse, flags: int, document: dict[str, Any]) -> None:
    data = json.dumps(document).encode()
    await stream.write(struct.pack(">BI", flags, len(data)) + data)


async def _event(stream: web.StreamResponse, event: dict[str, Any]) -> None:
    await _send(stream, 0, {"event": event})


async def _last(stream: web.StreamResponse, document: dict[str, Any]) -> None:
    await _send(stream, 2, document)
