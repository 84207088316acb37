"""Answering one completion request.

Guarantees: a request whose client has gone stops computing; every request is one span of the client's trace.
Does not: retry; the client does."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.requests import Request
from starlette.responses import Response

from services.rollout.engine import Answer, Choose, Engine
from services.rollout.gauges import Gauges
from services.rollout.refusal import UNFORESEEN, refusal
from services.rollout.reply import completion, json_response
from services.rollout.request import CompletionRequest
from services.rollout.versions import Versions
from tiltyard.telemetry.events import event_logger
from tiltyard.telemetry.propagation import context_from
from tiltyard.telemetry.recorder import SpanRecorder

log = event_logger("rollout")
tracer = trace.get_tracer("tiltyard.rollout")
T = TypeVar("T")

WANT_SPANS = "x-tiltyard-spans"
"""Header: `1` asks for this service's spans of the request in the body's `spans`."""
GONE = 499
"""Status, seen by no client, of a request whose client has gone; nginx's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the API works with."""

    versions: Versions
    engine: Engine
    gauges: Gauges
    recorder: SpanRecorder


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def complete(ports: Ports, request: Request, asked: CompletionRequest) -> Response:
    """The completion, or an error object, as a response."""
    began = time.monotonic()
    context = context_from(request.headers.get("traceparent"))
    with tracer.start_as_current_span(
        f"text_completion {asked.model}", context=context, kind=SpanKind.SERVER, attributes=_asked(asked)
    ) as span:
        status, body, headers = await _outcome(ports, request, asked, span)
    spans = ports.recorder.take_spans(trace.format_trace_id(span.get_span_context().trace_id))
    if request.headers.get(WANT_SPANS) == "1":
        body["spans"] = spans
    ports.gauges.answered(status, time.monotonic() - began)
    return json_response(body, status=status, headers=headers)


async def _outcome(
    ports: Ports, request: Request, asked: CompletionRequest, span: Span
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers."""
    try:
        answers = await unless_gone(request, _answers(ports, asked))
    except ClientGone:
        span.set_status(Status(StatusCode.ERROR, "the client has gone"))
        return GONE, {}, {}
    except Exception as error:
        told = refusal(error) or UNFORESEEN
        if told is UNFORESEEN:
            log.error("rollout.request_failed", model=asked.model, exc_info=True)
        span.set_attribute("error.type", told.code or told.type)
        span.set_status(Status(StatusCode.ERROR, told.message))
        return told.status, told.body(), told.headers()
    ports.gauges.completed(answers)
    body = completion(asked.model, answers, logprobs=asked.logprobs, token_ids=asked.return_token_ids)
    span.set_attributes(_answered(answers, body["model"]))
    return 200, body, {}


async def _answers(ports: Ports, asked: CompletionRequest) -> list[Answer]:
    choose = await ports.versions.chooser(asked.model)
    asks = asked.asks()
    if len(asks) == 1:
        return [await ports.engine.generate(choose, asks[0])]
    return await _together(ports.engine, choose, asked)


async def _together(engine: Engine, choose: Choose, asked: CompletionRequest) -> list[Answer]:
    """All choices of a request; the first failure stops the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.generate(choose, ask)) for ask in asked.asks()]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away first: then `ClientGone`."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def _asked(asked: CompletionRequest) -> dict[str, Any]:
    """Attributes by OpenTelemetry's conventions for generative AI."""
    attributes = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "tiltyard",
        "gen_ai.request.model": asked.model,
        "gen_ai.request.max_tokens": asked.max_tokens,
        "gen_ai.request.temperature": asked.temperature,
        "gen_ai.request.top_p": asked.top_p,
        "gen_ai.request.choice.count": asked.n,
        "gen_ai.request.seed": asked.seed,
    }
    return {key: value for key, value in attributes.items() if value is not None}


def _answered(answers: list[Answer], model: str) -> dict[str, Any]:
    return {
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": [str(answer.finish) for answer in answers],
        "gen_ai.usage.input_tokens": len(answers[0].prompt_token_ids),
        "gen_ai.usage.output_tokens": sum(len(answer.token_ids) for answer in answers),
        "tiltyard.policy_version": answers[0].policy.version,
        "tiltyard.queue_ms": round(1000 * max(answer.waited for answer in answers), 3),
    }
