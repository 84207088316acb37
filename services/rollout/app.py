"""The rollout service as an ASGI application.

Guarantees: OpenAI's and vLLM's shapes, also for errors; ready as soon as it can serve, with or without a
policy version.
Does not: authenticate; it belongs on loopback or in a private network."""

from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from services.rollout import completions, reply
from services.rollout.completions import Ports
from services.rollout.refusal import FORESEEN, UNFORESEEN, BadBody, Refusal, refusal
from services.rollout.request import CompletionRequest, DetokenizeRequest, TokenizeRequest
from tiltyard.contracts.document import Document, NotJson, parse_json

LARGEST_BODY = 16_000_000
MODELS_SHOWN = 100
D = TypeVar("D", bound=Document)


def create_app(ports: Ports) -> Starlette:
    """The application over its ports."""
    handlers = dict.fromkeys((Exception, *FORESEEN), on_error)
    app = Starlette(
        routes=[
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/healthz", healthy, methods=["GET"]),
            Route("/readyz", healthy, methods=["GET"]),
        ],
        exception_handlers={**handlers, HTTPException: on_http_error},
    )
    app.state.ports = ports
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


async def healthy(request: Request) -> Response:
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
        return parse_json(model, bytes(body), what="the request")
    except NotJson as error:
        raise BadBody(f"the body is no JSON: {error}") from error
