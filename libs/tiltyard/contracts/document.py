"""Frozen documents, and the errors that a wrong one gives.

Guarantees: `parse` names every fault with its path (the first `MOST_FAULTS` of more), and for an unknown key
the nearest known one.
Does not: read files; the caller has decoded JSON or TOML already."""

import difflib
import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError


class Document(BaseModel):
    """Base of everything that crosses a boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_bytes="base64")


class Fault(Document):
    """One thing that is wrong with a document."""

    path: str
    """Dotted path from the document's root, empty for the root itself."""
    message: str


MOST_FAULTS = 100
"""Named of one document: a generator's mistake may stand in it a million times."""


class InvalidDocument(ValueError):
    """A document that does not fit its schema; `faults` holds one row for each reason."""

    def __init__(self, what: str, faults: tuple[Fault, ...]) -> None:
        self.what, self.faults = what, faults
        lines = "; ".join(f"{f.path or 'document'}: {f.message}" for f in faults)
        super().__init__(f"{what} is not valid: {lines}")


class NotJson(ValueError):
    """Text that no JSON parser reads; the message says where it went wrong."""


D = TypeVar("D", bound=Document)


def parse_json(model: type[D], text: bytes, *, what: str) -> D:
    """As `parse`, of JSON that is not decoded yet: half the time. Raises `NotJson` too."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise NotJson(first["msg"]) from error
        raise InvalidDocument(what, faults_of(error, model)) from error


def parse(model: type[D], data: object, *, what: str) -> D:
    """`data` as a `model`; raises `InvalidDocument` naming `what` and every fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidDocument(what, faults_of(error, model)) from error


def faults_of(error: ValidationError, model: type[BaseModel] | None = None) -> tuple[Fault, ...]:
    """The faults of a validation, unknown keys with a suggestion; the last says how many more there are.

    A list that is "too short" only because its items are wrong is no fault of its own."""
    every = error.errors(include_url=False, include_context=False, include_input=False)
    rows = every[:MOST_FAULTS]
    faults = tuple(
        Fault(path=".".join(map(str, row["loc"])), message=_message(dict(row), model))
        for row in rows
        if row["type"] != "too_short" or not any(_beneath(other["loc"], row["loc"]) for other in rows)
    )
    if more := len(every) - len(rows):
        faults += (Fault(path="", message=f"and {more:,} more; mend these {MOST_FAULTS} first"),)
    return faults


def _beneath(path: tuple[int | str, ...], root: tuple[int | str, ...]) -> bool:
    return len(path) > len(root) and path[: len(root)] == root


def _message(row: Mapping[str, Any], model: type[BaseModel] | None) -> str:
    if row["type"] == "extra_forbidden":
        key, siblings = str(row["loc"][-1]), _known_keys(model, row["loc"][:-1])
        near = difflib.get_close_matches(key, siblings, n=1)
        return f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    if row["type"] == "missing":
        return "required key is missing"
    return str(row["msg"]).removeprefix("Value error, ")


def _known_keys(model: type[BaseModel] | None, path: tuple[int | str, ...]) -> list[str]:
    if model is None:
        return []
    models = [model]
    for step in path:
        models = _narrowed(models, step) or models
    return sorted({name for m in models for name in m.model_fields})


def _narrowed(models: list[type[BaseModel]], step: int | str) -> list[type[BaseModel]]:
    """The members of a union that carry the tag `step`, else what the field `step` holds."""
    tagged = [m for m in models if len(models) > 1 and _tag(m) == step]
    return tagged or [m for owner in models for m in _submodels(owner, step)]


def _tag(model: type[BaseModel]) -> object:
    field = model.model_fields.get("kind")
    values = get_args(field.annotation) if field else ()
    return values[0] if len(values) == 1 else None


def _submodels(owner: type[BaseModel], step: int | str) -> Iterator[type[BaseModel]]:
    field = owner.model_fields.get(str(step))
    if field is not None:
        yield from _models_in(field.annotation)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def canonical_json(document: Document | Mapping[str, Any]) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: equal documents give equal bytes."""
    data = document.model_dump(mode="json") if isinstance(document, Document) else document
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def content_hash(document: Document | Mapping[str, Any]) -> str:
    """Hex SHA-256 of the canonical JSON."""
    return sha256(canonical_json(document)).hexdigest()


def without(document: Document, *keys: str) -> dict[str, Any]:
    """The document's JSON without some of its top keys."""
    return {k: v for k, v in document.model_dump(mode="json").items() if k not in keys}
