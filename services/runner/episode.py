"""One episode: the policy and its environment take turns until an answer, a limit or a failure.

Guarantees: every end is an outcome of `core.outcome`, with all turns that were completed before it.
Does not: store or commit anything (`attempt`)."""

import asyncio
from dataclasses import dataclass, replace

from services.runner.interface import Ended, Interface, opened
from services.runner.policy import Context, InferenceFailed, Policy, Request
from tiltyard.contracts.records import Span, Turn
from tiltyard.contracts.run_config import Sampling
from tiltyard.contracts.task_spec import PublicSpec
from tiltyard.core.outcome import Outcome

CUT_OFF = "length"
"""`finish_reason` of a turn that ran into `max_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What an episode is made from."""

    spec: PublicSpec
    model: str
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """How an episode ended."""

    outcome: Outcome
    turns: tuple[Turn, ...]
    answer: str | None
    """None unless the outcome is valid."""
    reason: str = ""
    spans: tuple[Span, ...] = ()
    """What the rollout service tells of its own part."""


async def play(script: Script, policy: Policy) -> Episode:
    """Play one episode within its limits."""
    turns: list[Turn] = []
    spans: list[Span] = []
    seconds = script.spec.limits.episode_seconds
    try:
        async with asyncio.timeout(seconds), opened(script.spec) as interface:
            episode = await _take_turns(script, interface, policy, turns, spans)
    except InferenceFailed as error:
        episode = _failed(turns, str(error))
    except TimeoutError:
        episode = _failed(turns, f"the rollout service gave no turn within the episode's {seconds:g} s")
    return replace(episode, spans=tuple(spans))


async def _take_turns(
    script: Script, interface: Interface, policy: Policy, turns: list[Turn], spans: list[Span]
) -> Episode:
    limits, left = script.spec.limits, script.spec.limits.max_tokens
    context = await interface.first()
    while len(turns) < limits.turns and left > 0:
        turn = await policy.turn(_request(script, context, left, len(turns)), spans)
        turns.append(turn)
        left -= len(turn.token_ids)
        following = await interface.after(turn)
        if isinstance(following, Ended):
            cut = turn.finish_reason == CUT_OFF
            outcome = Outcome.TOKEN_LIMIT if cut else Outcome.COMPLETED
            return Episode(outcome=outcome, turns=tuple(turns), answer=following.answer)
        context = following
    outcome = Outcome.TURN_LIMIT if left > 0 else Outcome.TOKEN_LIMIT
    return Episode(outcome=outcome, turns=tuple(turns), answer=turns[-1].text if turns else "")


def _request(script: Script, context: Context, left: int, turn: int) -> Request:
    return Request(
        model=script.model,
        context=context,
        max_tokens=left,
        sampling=script.sampling,
        stop=script.spec.interface.stop,
        seed=(script.seed + turn) % 2**31,
    )


def _failed(turns: list[Turn], reason: str) -> Episode:
    return Episode(outcome=Outcome.INFERENCE_FAILED, turns=tuple(turns), answer=None, reason=reason)
