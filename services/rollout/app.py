"""The rollout service as an ASGI application.

Guarantees: OpenAI's and vLLM's shapes, also for errors; ready as soon as it can serve, with or without a
policy version.
Does not: authenticate; it belongs on loopback or in a private network."""

import json
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from services.rollout import completions, reply
from services.rollout.completions import Ports
from services.rollout.refusal import FORESEEN, UNFORESEEN, BadBody, Refusal, refusal
from services.rollout.request import CompletionRequest, DetokenizeRequest, TokenizeRequest
from tiltyard.contracts.document import Document, parse

LARGEST_BODY = 16_000_000
MODELS_SHOWN = 100
OWN_SPANS: Any = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own spans would lie beside ours in the attempt's record, without their parent."""
D = TypeVar("D", bound=Document)


def create_app(ports: Ports) -> FastAPI:
    """The application over its ports."""
    app = FastAPI(
        title="Tiltyard rollout",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=OWN_SPANS,
    )
    app.state.ports = ports
    app.add_api_route("/v1/completions", complete, methods=["POST"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/tokenize", tokenize, methods=["POST"])
    app.add_api_route("/detokenize", detokenize, methods=["POST"])
    app.add_api_route("/metrics", metrics, methods=["GET"])
    for path in ("/healthz", "/readyz"):
        app.add_api_route(path, healthy, methods=["GET"])
    app.add_exception_handler(Exception, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    for kind in FORESEEN:
        app.add_exception_handler(kind, on_error)
    return app


async def complete(request: Request) -> Response:
    asked = await read(request, CompletionRequest)
    return await completions.complete(_ports(request), request, asked)


async def models(request: Request) -> Response:
    return reply.json_response(
        {"object": "list", "data": await _ports(request).versions.models(MODELS_SHOWN)}
    )


async def tokenize(request: Request) -> Response:
    """vLLM's shape."""
    asked = await read(request, TokenizeRequest)
    policy = (await _ports(request).versions.chooser(asked.model))()
    tokens = policy.encode(asked.prompt, special=asked.add_special_tokens)
    strings = [reply.shown(policy, token) for token in tokens] if asked.return_token_strs else None
    return reply.json_response(
        {
            "count": len(tokens),
            "max_model_len": policy.context,
            "tokens": tokens,
            "token_strs": strings,
        }
    )


async def detokenize(request: Request) -> Response:
    """vLLM's shape; special tokens have no text."""
    asked = await read(request, DetokenizeRequest)
    policy = (await _ports(request).versions.chooser(asked.model))()
    text = b"".join(map(policy.bytes_of, asked.tokens)).decode("utf-8", "replace")
    return reply.json_response({"prompt": text})


async def metrics(request: Request) -> Response:
    ports = _ports(request)
    page = ports.gauges.exposition(len(ports.versions.loaded))
    return Response(page, media_type=ports.gauges.content_type)


async def healthy() -> Response:
    return PlainTextResponse("ok\n")


async def on_error(request: Request, error: Exception) -> Response:
    return _told(refusal(error) or UNFORESEEN)


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _told(Refusal(status=error.status_code, type="invalid_request_error", code=None, message=message))


def _told(told: Refusal) -> Response:
    return reply.json_response(told.body(), status=told.status, headers=told.headers())


def _ports(request: Request) -> Ports:
    return request.app.state.ports


async def read(request: Request, model: type[D]) -> D:
    """The body as a `model`. Raises `BadBody` or `InvalidDocument`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise BadBody(f"the body is larger than {LARGEST_BODY} bytes", 413)
    try:
        values: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBody(f"the body is no JSON: {error}") from error
    return parse(model, values, what="the request")
