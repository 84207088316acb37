"""Sandboxes of E2B's control plane.

Guarantees: each creation carries its key twice: as the request's `Idempotency-Key`, and as metadata, by which
it is looked for when nobody answered, so that deployments that know no such header leave no orphan either.
Source: e2b-dev/E2B, spec/openapi.yml (August 2026) and its Python client 2.63 (v2 of creation)."""

import asyncio
import base64
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from tiltyard.sandbox.capability import Capability, Demand
from tiltyard.sandbox.errors import CapabilityRefused, ImageFault, SandboxGone, SandboxUnavailable
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.remote.api import Api, Refused, Unanswered
from tiltyard.sandbox.remote.fleet import Found, Owner

from .guest import USER, E2BGuest

OWNER, INCARNATION, KEY = "tiltyard-owner", "tiltyard-incarnation", "tiltyard-key"
_ENVD_PORT = 49983
_AS_USER = "Basic " + base64.b64encode(f"{USER}:".encode()).decode()
_TRIES = 4
_REST_SECONDS = 0.5
_GONE_TRIES = 40
_GONE_REST_SECONDS = 0.25
_PAGE = 100
_NO_METHOD, _CONFLICT = 405, 409


class E2BFleet:
    """See `tiltyard.sandbox.remote.fleet.Fleet`."""

    name = "E2B"

    def __init__(
        self,
        api: Api,
        owner: Owner,
        template: str,
        limits: Limits,
        *,
        able: Mapping[Demand, Capability],
        accept: Collection[Demand],
        internet: bool,
        domain: str,
        sandbox_url: str | None,
    ) -> None:
        self.able = able
        self._api = api
        self._owner = owner
        self._template = template
        self._limits = limits
        self._accept = accept
        self._internet = internet
        self._domain = domain
        self._sandbox_url = sandbox_url
        self._is_measured = False
        self._is_old = False

    async def create(self, key: str, seconds: float) -> E2BGuest:
        document = {
            "templateID": self._template,
            "timeout": round(seconds),
            "autoPause": False,
            "allow_internet_access": self._internet,
            "metadata": {OWNER: self._owner.name, INCARNATION: self._owner.incarnation, KEY: key},
        }
        for left in range(_TRIES - 1, -1, -1):
            try:
                return await self._measured(await self._post(key, document))
            except Unanswered:
                if (adopted := await self._adopt(key, seconds)) is not None:
                    return await self._measured(adopted)
                if not left:
                    raise
                await asyncio.sleep(_REST_SECONDS)
            except Refused as error:
                if error.status in (400, 404):
                    raise ImageFault(
                        f"no sandbox can be made from template {self._template!r}: {error}"
                    ) from error
                raise
        raise AssertionError("the last try returns or raises")

    async def _post(self, key: str, document: dict[str, Any]) -> dict[str, Any]:
        """By the second version of the request, or the first where there is no second."""
        if not self._is_old:
            answer = await self._api.call(
                "POST",
                "/v2/sandboxes",
                ok=(201, _NO_METHOD, _CONFLICT),
                again=False,
                headers={"idempotency-key": key},
                json=document,
            )
            if answer.status_code == _CONFLICT:
                raise Unanswered(f"E2B is still about the creation with key {key}")
            if answer.status_code == 201:
                return answer.json()
            self._is_old = True
        secured = {**document, "secure": True}  # the second version always is
        return (await self._api.call("POST", "/sandboxes", ok=(201,), again=False, json=secured)).json()

    async def owned(self) -> list[Found]:
        return await self._list({OWNER: self._owner.name})

    async def destroy(self, ident: str) -> None:
        """Asks, and then looks until it is not there any more."""
        await self._api.call("DELETE", f"/sandboxes/{ident}", ok=(204, 404), again=True)
        for _ in range(_GONE_TRIES):
            if not await self.is_there(ident):
                return
            await asyncio.sleep(_GONE_REST_SECONDS)
        raise SandboxUnavailable(f"E2B said that sandbox {ident} was killed, and still knows it")

    async def renew(self, ident: str, seconds: float) -> None:
        answer = await self._api.call(
            "POST", f"/sandboxes/{ident}/timeout", ok=(204, 404), again=True, json={"timeout": round(seconds)}
        )
        _must_be_known(answer.status_code, ident)

    async def pause(self, ident: str) -> None:
        """409: a request that was not answered had paused it already."""
        answer = await self._api.call(
            "POST", f"/sandboxes/{ident}/pause", ok=(204, 404, _CONFLICT), again=True
        )
        _must_be_known(answer.status_code, ident)

    async def resume(self, ident: str, seconds: float) -> None:
        answer = await self._api.call(
            "POST",
            f"/sandboxes/{ident}/connect",
            ok=(200, 201, 404),
            again=True,
            json={"timeout": round(seconds)},
        )
        _must_be_known(answer.status_code, ident)

    async def close(self) -> None:
        await self._api.close()

    async def is_there(self, ident: str) -> bool:
        """Whether the control plane knows it; also true when it cannot be asked."""
        try:
            answer = await self._api.call("GET", f"/sandboxes/{ident}", ok=(200, 404), again=True)
        except SandboxUnavailable:
            return True
        return answer.status_code == 200

    async def _adopt(self, key: str, seconds: float) -> dict[str, Any] | None:
        """The sandbox that an unanswered request made, if it did; others of the same key are destroyed."""
        first, *more = await self._list({OWNER: self._owner.name, KEY: key}) or [None]
        for found in more:
            if found is not None:
                await self.destroy(found.id)
        if first is None:
            return None
        wanted = {"timeout": round(seconds)}
        answer = await self._api.call(
            "POST", f"/sandboxes/{first.id}/connect", ok=(200, 201), again=True, json=wanted
        )
        return answer.json()

    async def _list(self, metadata: dict[str, str]) -> list[Found]:
        found: list[Found] = []
        token = ""
        while True:
            query = {"metadata": urlencode(metadata), "state": "running,paused", "limit": str(_PAGE)}
            if token:
                query["nextToken"] = token
            answer = await self._api.call("GET", "/v2/sandboxes", again=True, params=query)
            for each in answer.json():
                labels = each.get("metadata") or {}
                found.append(Found(each["sandboxID"], labels.get(KEY, ""), labels.get(INCARNATION, "")))
            token = answer.headers.get("x-next-token", "")
            if not token:
                return found

    async def _measured(self, made: dict[str, Any]) -> E2BGuest:
        """The first one is looked at: a template fixes how much a sandbox may use."""
        ident = made["sandboxID"]
        if not self._is_measured:
            answer = await self._api.call("GET", f"/sandboxes/{ident}", again=True)
            try:
                self._compare(answer.json())
            except CapabilityRefused:
                await self.destroy(ident)
                raise
            self._is_measured = True
        return self._guest(made)

    def _compare(self, detail: dict[str, Any]) -> None:
        """Raises CapabilityRefused when a sandbox may use more than the limits say."""
        for demand, has, most in (
            (Demand.memory, detail["memoryMB"], self._limits.memory_mb),
            (Demand.cpus, detail["cpuCount"], self._limits.cpus),
            (Demand.disk, detail["diskSizeMB"], self._limits.disk_mb),
        ):
            if has > most and demand not in self._accept:
                raise CapabilityRefused(
                    f"template {self._template!r} has {demand} {has}, above the limit of {most}: build it "
                    f"smaller, raise the limit, or accept that by name (accept=[Demand.{demand}])"
                )

    def _guest(self, made: dict[str, Any]) -> E2BGuest:
        ident, token = made["sandboxID"], made.get("envdAccessToken") or ""
        domain = made.get("domain") or self._domain
        headers = {"e2b-sandbox-id": ident, "e2b-sandbox-port": str(_ENVD_PORT), "authorization": _AS_USER}
        if token:
            headers["x-access-token"] = token
        envd = Api(
            f"sandbox {ident} of E2B",
            self._sandbox_url or f"https://{_ENVD_PORT}-{ident}.{domain}",
            headers=lambda: headers,
            secrets=lambda: (token,),
            per_second=50,
            client=self._api.client,
        )
        return E2BGuest(ident, envd, self.is_there)


def _must_be_known(status: int, ident: str) -> None:
    """Raises SandboxGone."""
    if status == HTTPStatus.NOT_FOUND:
        raise SandboxGone(f"sandbox {ident} is gone: E2B no longer knows it; acquire another")
