"""A stand-in for a cluster with agent-sandbox: the API server's claims, the router, the runtime in each pod.

Written from kubernetes-sigs/agent-sandbox `extensions/api/v1beta1`, `clients/python` (router) and
`examples/python-runtime-sandbox` (August 2026). A pod is a folder; `/app` in commands means it."""

import asyncio
import json
import secrets
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from tests.integration.sandbox_remote.faults import Faults
from tests.integration.sandbox_remote.sessions import kill_session

CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/train/sandboxclaims"
HOME = "/app"
PAGE = 2


class Cluster:
    """Claims and pods of one namespace, with one warm pool called `python`."""

    def __init__(self, folder: Path, token: str = "k8s_secret", router_token: str = "router_secret") -> None:
        self.token = token
        self.router_token = router_token
        self.faults = Faults()
        self.claims: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, Path] = {}
        self.made: list[dict[str, Any]] = []
        self.ready_after = 0.02
        self.lingers = 0.05
        """seconds for which a deleted claim is still there, since its pod is"""
        self.reason = ""
        """why claims never get ready; empty: they do"""
        self.url = ""
        self._folder = folder
        self._version = 0
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._commands: set[subprocess.Popen[bytes]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Cluster"]:
        app = web.Application(middlewares=[self.faults.middleware], client_max_size=64 << 20)
        app.add_routes(
            [
                web.post(CLAIMS, self._create),
                web.get(CLAIMS, self._list),
                web.get(CLAIMS + "/{name}", self._get),
                web.patch(CLAIMS + "/{name}", self._patch),
                web.delete(CLAIMS + "/{name}", self._delete),
                web.post("/execute", self._execute),
                web.post("/upload", self._upload),
                web.get("/download/{path:.*}", self._download),
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
            for name in tuple(self.claims):
                await self.vanish(name)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await runner.cleanup()

    async def vanish(self, name: str) -> None:
        """The claim and its pod are gone at once, and whoever watches is told."""
        claim = self.claims.pop(name, None)
        if claim is None:
            return
        pod = self.pods.pop((claim.get("status") or {}).get("sandbox", {}).get("name", ""), None)
        for command in tuple(self._commands):
            kill_session(command.pid)
        if pod is not None:
            shutil.rmtree(pod)
        claim["deleted"] = True
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The API server.

    def _admit(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized(text=_status(401, "Unauthorized"), content_type="application/json")

    def _claim(self, request: web.Request) -> dict[str, Any]:
        self._admit(request)
        name = request.match_info["name"]
        claim = self.claims.get(name)
        if claim is not None and self._has_expired(claim):
            self._spawn(self.vanish(name))
            claim = None
        if claim is None:
            message = f'sandboxclaims "{name}" not found'
            raise web.HTTPNotFound(text=_status(404, message), content_type="application/json")
        return claim

    @staticmethod
    def _has_expired(claim: dict[str, Any]) -> bool:
        return datetime.fromisoformat(claim["spec"]["lifecycle"]["shutdownTime"]) < datetime.now(UTC)

    async def _create(self, request: web.Request) -> web.Response:
        self._admit(request)
        claim = await request.json()
        name = claim["metadata"]["name"]
        if name in self.claims:
            return web.Response(
                text=_status(409, "already exists"), status=409, content_type="application/json"
            )
        self.made.append(json.loads(json.dumps(claim)))
        self.claims[name] = claim
        self._touch(claim)
        self._spawn(self._serve(name))
        return web.json_response(claim, status=201)

    def _touch(self, claim: dict[str, Any]) -> None:
        self._version += 1
        claim["metadata"]["resourceVersion"] = str(self._version)

    async def _serve(self, name: str) -> None:
        """What the claim controller does: first not ready, then a pod of the warm pool, or never."""
        for step in range(2):
            await asyncio.sleep(self.ready_after)
            claim = self.claims.get(name)
            if claim is None:
                return
            ready = {
                "type": "Ready",
                "status": "False",
                "reason": self.reason or "SandboxNotReady",
                "message": "-",
            }
            claim["status"] = {"conditions": [ready]}
            if step and not self.reason:
                sandbox = f"python-{secrets.token_hex(3)}"
                self.pods[sandbox] = self._folder / sandbox
                self.pods[sandbox].mkdir()
                ready.update(status="True", reason="DependenciesReady")
                claim["status"]["sandbox"] = {"name": sandbox, "podIPs": ["10.0.0.9"]}
            async with self._changed:
                self._touch(claim)
                self._changed.notify_all()

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self._admit(request)
        if request.query.get("watch") == "true":
            return await self._watch(request)
        name, value = request.query["labelSelector"].split("=")
        fit = [each for each in self.claims.values() if each["metadata"]["labels"].get(name) == value]
        start = int(request.query.get("continue", "0"))
        more = str(start + PAGE) if len(fit) > start + PAGE else ""
        items = fit[start : start + PAGE]
        return web.json_response({"kind": "SandboxClaimList", "metadata": {"continue": more}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        after = int(request.query["resourceVersion"])
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        claim = self.claims.get(name, {"deleted": True, "metadata": {}})
        async with self._changed, asyncio.timeout(float(request.query["timeoutSeconds"])):
            await self._changed.wait_for(
                lambda: claim.get("deleted") or int(claim["metadata"]["resourceVersion"]) > after
            )
        kind = "DELETED" if claim.get("deleted") else "MODIFIED"
        await stream.write(json.dumps({"type": kind, "object": claim}).encode() + b"\n")
        return stream

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._claim(request))

    async def _patch(self, request: web.Request) -> web.Response:
        claim = self._claim(request)
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        claim["spec"]["lifecycle"].update(json.loads(await request.text())["spec"]["lifecycle"])
        self._touch(claim)
        return web.json_response(claim)

    async def _delete(self, request: web.Request) -> web.Response:
        claim = self._claim(request)
        assert (await request.json())["propagationPolicy"] == "Foreground"
        claim["metadata"]["deletionTimestamp"] = "now"

        async def later() -> None:
            await asyncio.sleep(self.lingers)
            await self.vanish(claim["metadata"]["name"])

        self._spawn(later())
        return web.json_response(claim)

    # The router, and the runtime behind it.

    def _pod(self, request: web.Request) -> Path:
        if request.headers.get("Authorization") != f"Bearer {self.router_token}":
            text = json.dumps({"detail": "Invalid token."})
            raise web.HTTPUnauthorized(text=text, content_type="application/json")
        assert request.headers["X-Sandbox-Namespace"] == "train"
        assert request.headers["X-Sandbox-Port"] == "8888"
        pod = self.pods.get(request.headers["X-Sandbox-ID"])
        if pod is None:
            text = json.dumps({"detail": "Could not connect to the backend sandbox"})
            raise web.HTTPBadGateway(text=text, content_type="application/json")
        return pod

    async def _execute(self, request: web.Request) -> web.Response:
        pod = self._pod(request)
        float(request.headers["X-Sandbox-Timeout"])
        argv = [word.replace(HOME, str(pod)) for word in shlex.split((await request.json())["command"])]
        return web.json_response(await asyncio.to_thread(self._run, argv, pod))

    def _run(self, argv: list[str], pod: Path) -> dict[str, Any]:
        """As the runtime does, without a shell."""
        try:
            command = subprocess.Popen(
                argv, cwd=pod, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
            self._commands.add(command)
            out, err = command.communicate(timeout=300)
            self._commands.discard(command)
            return {"stdout": out.decode(), "stderr": err.decode(), "exit_code": command.returncode}
        except Exception as error:  # noqa: BLE001 - the runtime answers whatever happens
            return {"stdout": "", "stderr": f"Failed to execute command: {error}", "exit_code": 1}

    def _inside(self, pod: Path, name: str) -> Path:
        path = (pod / name.lstrip("/")).resolve()
        if not path.is_relative_to(pod.resolve()):
            text = json.dumps({"message": "Access denied"})
            raise web.HTTPForbidden(text=text, content_type="application/json")
        return path

    async def _upload(self, request: web.Request) -> web.Response:
        pod = self._pod(request)
        uploaded = (await request.post())["file"]
        assert isinstance(uploaded, web.FileField)
        path = self._inside(pod, uploaded.filename)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(uploaded.file.read())
        except OSError as error:
            return web.json_response({"message": f"File upload failed: {error}"}, status=500)
        return web.json_response({"message": f"File '{uploaded.filename}' uploaded successfully."})

    async def _download(self, request: web.Request) -> web.Response:
        path = self._inside(self._pod(request), unquote(request.match_info["path"]))
        if not path.is_file():
            return web.json_response({"message": "File not found"}, status=404)
        return web.Response(body=path.read_bytes())


def _status(code: int, message: str) -> str:
    return json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": code})
