"""The policy, asked over the rollout service's OpenAI-compatible completions.

Guarantees: what comes back is a whole turn — tokens, their log-probabilities and their policy versions,
equally many — or a typed error; what may pass is tried again with back-off until the caller's time is up.
Does not: tokenise. The first turn sends the prompt as text; later turns send the token ids that came back."""

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import aiohttp
from opentelemetry import trace

from tiltyard.contracts.document import InvalidDocument, parse
from tiltyard.contracts.records import Span, Turn
from tiltyard.contracts.run_config import Sampling
from tiltyard.core.retry import backoff
from tiltyard.telemetry.propagation import inject

tracer = trace.get_tracer("tiltyard.runner")
Context = str | tuple[int, ...]
"""What a turn is conditioned on: text, or token ids."""
MAY_PASS = frozenset({404, 408, 409, 425, 429, 500, 502, 503, 504})
"""404: the version may not be loaded yet."""
WANT_SPANS = "x-tiltyard-spans"
"""Header by which the rollout service gives its own spans of a request back."""
SHOWN = 300


class InferenceFailed(Exception):
    """The rollout service gave no usable turn, and asking again will not help."""


class _MayPass(Exception):
    """A failure that may pass by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn to generate."""

    model: str
    """`run@version` or `run@latest`."""
    context: Context
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int

    def body(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": self.context if isinstance(self.context, str) else list(self.context),
            "max_tokens": self.max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "stop": list(self.stop),
            "seed": self.seed,
            "logprobs": 0,
            "return_token_ids": True,
        }


class Policy:
    """Turns from one rollout service."""

    def __init__(self, session: aiohttp.ClientSession, url: str, may_act: asyncio.Event) -> None:
        self._session, self._url = session, f"{url.rstrip('/')}/v1/completions"
        self._may_act = may_act

    async def turn(self, request: Request, spans: list[Span]) -> Turn:
        """Ask until there is a turn, and add the service's own spans; the caller bounds the time.

        Raises `InferenceFailed`."""
        failures = 0
        while True:
            await self._may_act.wait()
            try:
                return await self._ask(request, spans)
            except _MayPass as error:
                failures += 1
                trace.get_current_span().add_event("policy.retry", {"reason": str(error)})
                await asyncio.sleep(backoff(failures, jitter=random.random()).total_seconds())

    async def _ask(self, request: Request, spans: list[Span]) -> Turn:
        with tracer.start_as_current_span("chat", attributes={"gen_ai.request.model": request.model}) as span:
            try:
                headers = {"traceparent": inject(), WANT_SPANS: "1"}
                async with self._session.post(self._url, json=request.body(), headers=headers) as response:
                    body = await _body(response)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _MayPass(f"{type(error).__name__}: {error}") from error
            turn = _turn(request, body)
            spans += _spans(body)
            span.set_attribute("gen_ai.usage.output_tokens", len(turn.token_ids))
            span.set_attribute("gen_ai.response.finish_reasons", [turn.finish_reason])
            return turn


async def _body(response: aiohttp.ClientResponse) -> Any:
    if response.status in MAY_PASS:
        raise _MayPass(f"HTTP {response.status}: {(await response.text())[:SHOWN]}")
    if response.status != 200:
        raise InferenceFailed(f"HTTP {response.status}: {(await response.text())[:SHOWN]}")
    try:
        return json.loads(await response.read())
    except ValueError as error:
        raise InferenceFailed(f"the rollout service answered no JSON: {error}") from error


def _turn(request: Request, body: Any) -> Turn:
    """The first choice of a completion. Raises `InferenceFailed` when a part is missing."""
    try:
        choice = body["choices"][0]
        tokens = choice["token_ids"]
        turn = parse(
            Turn,
            {
                "prompt_token_ids": choice["prompt_token_ids"],
                "token_ids": tokens,
                "logprobs": choice["logprobs"]["token_logprobs"],
                "policy_versions": choice["policy_versions"],
                "text": _printable(choice["text"]),
                "finish_reason": choice["finish_reason"],
            },
            what="the rollout service's choice",
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise InferenceFailed(f"the rollout service's answer lacks a part: {error!r}") from error
    except InvalidDocument as error:
        raise InferenceFailed(str(error)) from error
    if not len(turn.token_ids) == len(turn.logprobs) == len(turn.policy_versions):
        raise InferenceFailed(
            f"the rollout service gave {len(turn.token_ids)} tokens, {len(turn.logprobs)} log-probabilities "
            f"and {len(turn.policy_versions)} policy versions for {request.model}"
        )
    return turn


def _spans(body: dict[str, Any]) -> list[Span]:
    """The service's spans of this request; none from a service that keeps them to itself."""
    spans = body.get("spans")
    return [s for s in spans if isinstance(s, dict)] if isinstance(spans, list) else []


def _printable(text: str) -> str:
    """Text that every store takes: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")
