"""Request bodies as documents.

Guarantees: a body is JSON in UTF-8, without doubled keys, non-finite numbers or text that a row cannot hold;
what is wrong is named with its path.
Does not: limit the size; `gate` does, before a byte is kept."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from fastapi import Request

from tiltyard.contracts.document import Document, Fault, InvalidDocument, parse
from tiltyard.web.problem import Refusal

D = TypeVar("D", bound=Document)
_SUSPECT = re.compile(rb"\\u(0000|[dD][89a-fA-F])")


async def document(request: Request, model: type[D], *, what: str) -> D:
    """The body as a `model`; raises `Refusal` or `InvalidDocument`."""
    return parse(model, await values(request, what=what), what=what)


async def values(request: Request, *, what: str) -> object:
    """The body as plain values; raises `Refusal` or `InvalidDocument`."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"the body must be application/json, not {kind or 'without a Content-Type'}")
    return decode(await request.body(), what=what)


def decode(raw: bytes, *, what: str) -> object:
    """JSON bytes as values; raises `Refusal` (400) or `InvalidDocument`."""
    try:
        data = json.loads(
            raw.decode(), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not valid UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise Refusal(400, "the body is nested too deeply") from error
    except ValueError as error:
        raise Refusal(400, f"the body is not valid JSON: {error}") from error
    if _SUSPECT.search(raw):
        faults = tuple(_unstorable(data, ()))[:20]
        if faults:
            raise InvalidDocument(what, faults)
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"number {digits[:40]} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [k for k, _ in pairs]
        twice = next(k for k in names if names.count(k) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object")
    return made


def _unstorable(data: object, path: tuple[str, ...]) -> Iterator[Fault]:
    if isinstance(data, str):
        if wrong := _wrong_with(data):
            yield Fault(path=".".join(path), message=wrong)
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _unstorable(key, (*path, f"key {key!r}"))
            yield from _unstorable(value, (*path, key.encode("utf-8", "replace").decode()))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _unstorable(value, (*path, str(index)))


def _wrong_with(text: str) -> str | None:
    if "\x00" in text:
        return f"NUL character at offset {text.index(chr(0))}; remove it"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"not valid UTF-8 at offset {error.start}; remove the lone surrogate"
    return None
