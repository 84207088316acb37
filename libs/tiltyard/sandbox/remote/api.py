"""Requests to a provider: at its pace, tried again where that does no harm, and with errors that have a type.

Guarantees: never more than so many requests a second from one `Api`; a refusal for haste (429) is waited out
as long as it says; only what may be done twice is sent twice; no key in any message.
Does not: know what a request means."""

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from tiltyard.sandbox.errors import SandboxUnavailable
from tiltyard.sandbox.network.shape import Bucket

Headers = Callable[[], Mapping[str, str]]

_TRIES = 5
_FIRST_REST, _MOST_REST = 0.2, 30.0
_TOO_MANY, _UNAUTHORISED, _FORBIDDEN = 429, 401, 403
_PASSING = frozenset({408, 500, 502, 503, 504})
_MOST_TEXT = 300


class Unanswered(SandboxUnavailable):
    """The provider did not answer, or broke down: whether it did what was asked is not known."""


class Refused(SandboxUnavailable):
    """The provider answered, and said no."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One provider's endpoint, with its key."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Headers,
        secrets: Callable[[], tuple[str, ...]],
        per_second: float,
        timeout: float = 30.0,
        verify: Any = True,
        client: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`headers` are asked for each request, since keys rotate. `secrets` never appear in messages. A
        `client` is shared, and closed by whoever made it."""
        self.name = name
        self._url = url.rstrip("/")
        self._headers = headers
        self._secrets = secrets
        self._bucket = Bucket(per_second, burst=per_second)
        self._sleep = sleep
        self._is_shared = client is not None
        trust = verify if url.startswith("https:") else False  # what is not used costs 50 ms to read
        self.client = client or httpx.AsyncClient(timeout=timeout, verify=trust, follow_redirects=False)

    async def close(self) -> None:
        if not self._is_shared:
            await self.client.aclose()

    def url(self, path: str) -> str:
        return self._url + path

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**self._headers(), **(more or {})}

    async def call(
        self,
        method: str,
        path: str,
        *,
        ok: tuple[int, ...] = (200,),
        again: bool,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> httpx.Response:
        """`ok`: statuses that are returned. `again`: it may be done twice.

        Raises Unanswered, Refused."""
        rest = _FIRST_REST
        for left in range(_TRIES - 1, -1, -1):
            await self._bucket.take(1)
            if timeout is not None:
                options["timeout"] = timeout
            try:
                answer = await self.client.request(
                    method, self.url(path), headers=self.headers(headers), **options
                )
            except httpx.HTTPError as error:
                fault = Unanswered(
                    self.clean(f"{self.name}: {method} {path}: {type(error).__name__}: {error}")
                )
                never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not left or not (again or never_sent):
                    raise fault from error
                await self._sleep(rest * random.uniform(0.5, 1.0))
            else:
                if answer.status_code in ok:
                    return answer
                if not left or not self.may_repeat(answer, again):
                    raise self.fault(method, path, answer)
                await self._sleep(self.rest(answer, rest))
            rest = min(2 * rest, _MOST_REST)
        raise AssertionError("the last try returns or raises")

    @staticmethod
    def may_repeat(answer: httpx.Response, again: bool) -> bool:
        """A 429 did nothing; what broke down may have done it."""
        return answer.status_code == _TOO_MANY or (again and answer.status_code in _PASSING)

    @staticmethod
    def rest(answer: httpx.Response, otherwise: float) -> float:
        """Seconds until the next try: what Retry-After says, as seconds or as a date, or `otherwise`."""
        said = answer.headers.get("retry-after", "")
        if said.isdigit():
            return min(float(said), _MOST_REST)
        when = email.utils.parsedate_tz(said)
        if when is not None:
            return min(max(0.0, email.utils.mktime_tz(when) - time.time()), _MOST_REST)
        return otherwise * random.uniform(0.5, 1.0)

    def fault(self, method: str, path: str, answer: httpx.Response) -> SandboxUnavailable:
        """The error for an answer that is none of those that were hoped for."""
        status = answer.status_code
        said = f"{self.name}: {method} {path}: {status} {self.clean(_message(answer))}".rstrip()
        if status in (_UNAUTHORISED, _FORBIDDEN):
            return Refused(f"{said}: its key is absent, wrong or may not do this", status)
        return Unanswered(said) if status in _PASSING else Refused(said, status)

    def clean(self, text: str) -> str:
        """Without keys, and not too long."""
        for secret in filter(None, self._secrets()):
            text = text.replace(secret, "***")
        return text[:_MOST_TEXT]


def _message(answer: httpx.Response) -> str:
    try:
        document = answer.json()
        return str(document.get("message", document)) if isinstance(document, dict) else str(document)
    except ValueError:
        return answer.text
