"""Sandboxes of a cluster that runs agent-sandbox: SandboxClaims against a SandboxWarmPool.

Guarantees: a claim's name is the key, so that a creation that was not answered is the same one when asked
again; each claim carries a time at which the cluster deletes it, moved on while its holder lives; a deletion
is done once the claim, and with it its pod, is gone.
Source: kubernetes-sigs/agent-sandbox, extensions/api/v1beta1 and clients/python (August 2026)."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tiltyard.sandbox.capability import Capability, Demand, cannot
from tiltyard.sandbox.errors import ImageFault, SandboxGone, SandboxUnavailable
from tiltyard.sandbox.remote.api import Api, Refused
from tiltyard.sandbox.remote.fleet import Found, Owner

from .runtime import AgentSandboxGuest

_GROUP = "extensions.agents.x-k8s.io/v1beta1"
OWNER, INCARNATION = "tiltyard.dev/owner", "tiltyard.dev/incarnation"
_ABSENT = frozenset({"TemplateNotFound", "WarmPoolNotFound"})
_TERMINAL = frozenset(
    {
        "InvalidMetadata",
        "EnvVarsInjectionRejected",
        "VolumeClaimTemplatesError",
        "ClaimExpired",
        "SandboxExpired",
    }
)
_READY_SECONDS = 180.0
_WATCH_SECONDS = 30
_GONE_SECONDS = 60.0
_REST_SECONDS = 0.25
_FIRST_REST_SECONDS, _MOST_REST_SECONDS = 0.05, 2.0
_PAGE = 200
_MERGE = {"content-type": "application/merge-patch+json"}
_FOREGROUND = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
_CONFLICT = 409


class ClaimFleet:
    """See `tiltyard.sandbox.remote.fleet.Fleet`."""

    name = "agent-sandbox"

    def __init__(
        self,
        api: Api,
        router: Api,
        owner: Owner,
        namespace: str,
        warm_pool: str,
        *,
        able: Mapping[Demand, Capability],
        guest: Callable[[str, str], AgentSandboxGuest],
    ) -> None:
        """`guest`: from a claim's and a sandbox's name. `router` is closed with it."""
        self.able = able
        self._api = api
        self._router = router
        self._owner = owner
        self._warm_pool = warm_pool
        self._path = f"/apis/{_GROUP}/namespaces/{namespace}/sandboxclaims"
        self._guest = guest

    async def create(self, key: str, seconds: float) -> AgentSandboxGuest:
        name = f"tiltyard-{key}"
        answer = await self._api.call(
            "POST", self._path, ok=(200, 201, 202, _CONFLICT), again=True, json=self._claim(name, seconds)
        )
        try:
            claim = answer.json()
            if answer.status_code == _CONFLICT:  # an earlier try was answered by nobody
                claim = (await self._api.call("GET", f"{self._path}/{name}", again=True)).json()
            return self._guest(name, await self._wait(name, claim))
        except Refused as error:
            raise SandboxUnavailable(f"claim {name} was lost while it was made: {error}") from error

    async def owned(self) -> list[Found]:
        found: list[Found] = []
        more = ""
        while True:
            query = {"labelSelector": f"{OWNER}={self._owner.name}", "limit": str(_PAGE)}
            if more:
                query["continue"] = more
            page = (await self._api.call("GET", self._path, again=True, params=query)).json()
            for item in page.get("items", []):
                name, labels = item["metadata"]["name"], item["metadata"].get("labels") or {}
                found.append(Found(name, name.removeprefix("tiltyard-"), labels.get(INCARNATION, "")))
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return found

    async def destroy(self, ident: str) -> None:
        await self._api.call(
            "DELETE", f"{self._path}/{ident}", ok=(200, 202, 404), again=True, json=_FOREGROUND
        )
        last = time.monotonic() + _GONE_SECONDS
        rest = _FIRST_REST_SECONDS
        while await self.is_there(ident):
            if time.monotonic() > last:
                raise SandboxUnavailable(f"claim {ident} was deleted, and is still there")
            await asyncio.sleep(rest)
            rest = min(2 * rest, _MOST_REST_SECONDS)

    async def renew(self, ident: str, seconds: float) -> None:
        wanted = {"spec": {"lifecycle": {"shutdownTime": _at(seconds), "shutdownPolicy": "Delete"}}}
        answer = await self._api.call(
            "PATCH",
            f"{self._path}/{ident}",
            ok=(200, 404),
            again=True,
            headers=_MERGE,
            content=json.dumps(wanted),
        )
        if answer.status_code == 404:
            raise SandboxGone(f"claim {ident} is gone: it was deleted or has expired; acquire another")

    async def pause(self, ident: str) -> None:
        raise cannot(self.name, self.able, Demand.pause)

    async def resume(self, ident: str, seconds: float) -> None:
        raise cannot(self.name, self.able, Demand.pause)

    async def close(self) -> None:
        await self._api.close()
        await self._router.close()

    async def is_there(self, ident: str) -> bool:
        """Whether the claim exists; also true when the cluster cannot be asked."""
        try:
            answer = await self._api.call("GET", f"{self._path}/{ident}", ok=(200, 404), again=True)
        except SandboxUnavailable:
            return True
        return answer.status_code == 200

    def _claim(self, name: str, seconds: float) -> dict[str, Any]:
        """Without environment variables, which would cost the warm pool's start."""
        labels = {OWNER: self._owner.name, INCARNATION: self._owner.incarnation}
        return {
            "apiVersion": _GROUP,
            "kind": "SandboxClaim",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "warmPoolRef": {"name": self._warm_pool},
                "lifecycle": {"shutdownTime": _at(seconds), "shutdownPolicy": "Delete"},
            },
        }

    async def _wait(self, name: str, claim: dict[str, Any]) -> str:
        """The name of its sandbox, once that is ready."""
        last = time.monotonic() + _READY_SECONDS
        while time.monotonic() < last:
            sandbox = self._ready(name, claim)
            if sandbox:
                return sandbox
            claim = await self._next(name, claim)
        raise SandboxUnavailable(
            f"claim {name} was not ready after {_READY_SECONDS:.0f} s: is the pool large enough?"
        )

    def _ready(self, name: str, claim: dict[str, Any]) -> str:
        """Raises ImageFault, SandboxUnavailable when it never will be."""
        status = claim.get("status") or {}
        is_ready = False
        for condition in status.get("conditions") or []:
            reason, said = condition.get("reason", ""), condition.get("message", "")
            if reason in _ABSENT:
                raise ImageFault(f"warm pool {self._warm_pool!r} cannot serve: {reason}: {said}")
            if condition.get("type") == "Ready" and reason in _TERMINAL:
                raise SandboxUnavailable(f"claim {name} failed: {reason}: {said}")
            is_ready = is_ready or (condition.get("type") == "Ready" and condition.get("status") == "True")
        return (status.get("sandbox") or {}).get("name", "") if is_ready else ""

    async def _next(self, name: str, claim: dict[str, Any]) -> dict[str, Any]:
        """The claim as it is after its next change; read anew when the watch is cut or too old."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": (claim.get("metadata") or {}).get("resourceVersion", "0"),
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        try:
            async with self._api.client.stream(
                "GET",
                self._api.url(self._path),
                params=query,
                headers=self._api.headers(),
                timeout=httpx.Timeout(_WATCH_SECONDS + 5.0),
            ) as answer:
                async for line in answer.aiter_lines():
                    event = json.loads(line) if line.strip() else {}
                    if event.get("type") == "DELETED":
                        raise SandboxUnavailable(f"claim {name} was deleted by someone while it was made")
                    if event.get("type") in ("ADDED", "MODIFIED"):
                        return event["object"]
                    if event.get("type") == "ERROR":
                        break
        except (httpx.HTTPError, ValueError):
            await asyncio.sleep(_REST_SECONDS)
        return (await self._api.call("GET", f"{self._path}/{name}", again=True)).json()


def _at(seconds: float) -> str:
    when = datetime.now(UTC) + timedelta(seconds=seconds)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
