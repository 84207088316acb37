"""Requests to the registry, with repetitions.

Guarantees: only what may be repeated is repeated, with back-off and the registry's Retry-After; what comes
back is a success or an exception.
Does not: know any route."""

import random
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from tiltyard.client.errors import ApiError, Unreachable
from tiltyard.contracts.document import InvalidDocument, parse
from tiltyard.contracts.http import Problem

RETRIED = frozenset({429, 502, 503, 504})
TRIES = 6
LONGEST_WAIT = 5.0
TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class Transport:
    """One connection pool to one registry."""

    def __init__(
        self, base_url: str, token: str, *, tries: int = TRIES, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.base_url, self._tries = base_url.rstrip("/"), tries
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": "tiltyard-client"},
            timeout=TIMEOUT,
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | Path | None = None,
        kind: str = "application/json",
        timeout: float | httpx.Timeout = TIMEOUT,
    ) -> httpx.Response:
        """The answer of a request that succeeded; a body that is a file is sent piece by piece.

        Raises `ApiError` or `Unreachable`, and OSError for a file that cannot be read."""
        headers = {"Content-Type": kind} if body is not None else {}
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex
        given = {k: str(v) for k, v in (query or {}).items() if v is not None}
        last: httpx.HTTPError | None = None
        for wait in self._waits():
            try:
                with _content(body) as content:
                    answer = self._http.request(
                        method, path, params=given, content=content, headers=headers, timeout=timeout
                    )
            except httpx.HTTPError as error:
                last, pause = error, wait
            else:
                if answer.is_success:
                    return answer
                if answer.status_code not in RETRIED or wait is None:
                    raise ApiError(_problem(answer))
                pause = _asked_to_wait(answer, wait)
            if pause is None:
                break
            time.sleep(pause)
        raise Unreachable(self._unreachable(last)) from last

    def _waits(self) -> Iterator[float | None]:
        """Pause after each try, with full jitter; None after the last."""
        for attempt in range(self._tries - 1):
            yield random.uniform(0.5, 1.0) * min(LONGEST_WAIT, 0.1 * 2**attempt)
        yield None

    def _unreachable(self, error: httpx.HTTPError | None) -> str:
        if isinstance(error, httpx.ConnectError):
            return (
                f"no registry answers at {self.base_url} ({error}); start one with `tiltyard up`, or name"
                " another with --url or TILTYARD_URL"
            )
        return f"the registry at {self.base_url} did not finish its answer: {type(error).__name__}: {error}"


@contextmanager
def _content(body: bytes | Path | None) -> Iterator[bytes | BinaryIO | None]:
    """A file from its first byte on, for each try."""
    if isinstance(body, Path):
        with body.open("rb") as file:
            yield file
    else:
        yield body


def _asked_to_wait(answer: httpx.Response, otherwise: float) -> float:
    asked = answer.headers.get("Retry-After", "")
    return min(float(asked), LONGEST_WAIT) if asked.isdigit() else otherwise


def _problem(answer: httpx.Response) -> Problem:
    """The problem that an answer holds, or one that describes an answer without."""
    try:
        return parse(Problem, answer.json(), what="problem")
    except (ValueError, InvalidDocument):
        detail = f"not an answer of a Tiltyard registry: {answer.text[:200]!r}"
        return Problem(title=answer.reason_phrase, status=answer.status_code, detail=detail)
