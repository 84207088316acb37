"""The OpenAPI document of a service: bodies that are parsed by hand, their examples, problems.

Guarantees: every schema that a route takes or gives stands in it once.
Does not: check requests; `body` does."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from tiltyard.contracts.document import Document
from tiltyard.contracts.http import Problem

Examples = Callable[[str], dict[str, Any]]
"""Examples of the body of the operation with this id, by name."""
REF = "#/components/schemas/{model}"
SCHEMAS = "x-schemas"
"""Where a route leaves the schemas of its body until the document is put together."""
BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}
"""`openapi_extra` of a route whose body is a file."""
REFUSALS = {
    "400": "Not JSON, or not UTF-8.",
    "401": "No token, or a wrong one.",
    "403": "Not permitted in this deployment.",
    "404": "No such thing.",
    "409": "A name or an Idempotency-Key is taken.",
    "410": "It was here, and is no more.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "The document is not valid; `faults` names each reason.",
    "429": "Too much at once; see Retry-After.",
    "503": "What the service needs does not answer, or all of it is lent; see Retry-After.",
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


def _none(operation: str) -> dict[str, Any]:
    return {}


def install(app: FastAPI, examples: Examples = _none) -> None:
    """Make `app.openapi` give the completed document, built once."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, examples)
        return app.openapi_schema

    app.openapi = build


def _document(app: FastAPI, examples: Examples) -> dict[str, Any]:
    built = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    operations = [o for path in built["paths"].values() for o in path.values()]
    schemas: dict[str, Any] = built["components"]["schemas"]
    for own in (_schemas(Problem), *(o.pop(SCHEMAS, {}) for o in operations)):
        schemas.update({name: schema for name, schema in own.items() if name not in schemas})
    for operation in operations:
        _complete(operation, examples(operation["operationId"]))
    built["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    built["security"] = [{"token": []}]
    return built


def _complete(operation: dict[str, Any], examples: dict[str, Any]) -> None:
    responses = operation["responses"]
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    for status, meaning in REFUSALS.items():
        responses[status] = {"description": meaning, "content": problem}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None and examples:
        body["examples"] = examples
