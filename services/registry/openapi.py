"""The OpenAPI document: bodies that are parsed by hand, examples from `docs/examples`, problems.

Guarantees: every schema that a route takes or gives stands in it once.
Does not: check requests; `body` does."""

import json
import tomllib
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from tiltyard.contracts.document import Document
from tiltyard.contracts.http import Problem

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
"""In a checkout; an installed wheel does without."""
REF = "#/components/schemas/{model}"
SCHEMAS = "x-schemas"
"""Where a route leaves the schemas of its body until the document is put together."""
REFUSALS = {
    "400": "Not JSON, or not UTF-8.",
    "401": "No token, or a wrong one.",
    "404": "No such thing.",
    "409": "A name or an Idempotency-Key is taken.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "The document is not valid; `faults` names each reason.",
    "429": "Too much at once; see Retry-After.",
    "503": "Database or object store do not answer; see Retry-After.",
}


def takes(*models: type[Document]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is one of `models`."""
    refs = [{"$ref": REF.format(model=m.__name__)} for m in models]
    schema = refs[0] if len(refs) == 1 else {"oneOf": refs}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body, SCHEMAS: _schemas(*models)}


def _schemas(*models: type[Document]) -> dict[str, Any]:
    _, given = models_json_schema([(m, "validation") for m in models], ref_template=REF)
    return given["$defs"]


def install(app: FastAPI) -> None:
    """Make `app.openapi` give the completed document, built once."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = build


def _document(app: FastAPI) -> dict[str, Any]:
    built = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    operations = [o for path in built["paths"].values() for o in path.values()]
    schemas: dict[str, Any] = built["components"]["schemas"]
    for own in (_schemas(Problem), *(o.pop(SCHEMAS, {}) for o in operations)):
        schemas.update({name: schema for name, schema in own.items() if name not in schemas})
    for operation in operations:
        _complete(operation)
    built["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    built["security"] = [{"token": []}]
    return built


def _complete(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    for status, meaning in REFUSALS.items():
        responses[status] = {"description": meaning, "content": problem}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None and (examples := examples_of(operation["operationId"])):
        body["examples"] = examples


def examples_of(operation: str) -> dict[str, Any]:
    """Examples of a body, from the files that the documentation shows."""
    if operation.startswith("submit_v1"):
        return {
            name: {"value": {"spec": example["value"], "tasksets": ["mine"], "repeats": 3}}
            for name, example in _load("task-*.json").items()
        }
    if operation.startswith("start"):
        return _load("run-*.toml")
    return {}


def _load(pattern: str) -> dict[str, Any]:
    return {
        path.stem: {
            "value": tomllib.loads(path.read_text())
            if path.suffix == ".toml"
            else json.loads(path.read_text())
        }
        for path in sorted(EXAMPLES.glob(pattern))
    }
