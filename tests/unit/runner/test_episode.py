"""An episode ends in an outcome, whatever happens in it."""

import asyncio
from typing import Any

from aiohttp import web

from services.runner.episode import Episode, Script, play
from tiltyard.contracts.run_config import Sampling
from tiltyard.contracts.task_spec import PublicSpec
from tiltyard.core.outcome import Outcome
from tiltyard.testing.rows import addition


def _play(serving: Any, service: Any, **limits: Any) -> Episode:
    spec: PublicSpec = addition(limits={"max_tokens": 8, **limits}).public()

    async def main() -> Episode:
        async with serving(service) as policy:
            return await play(Script(spec=spec, model="m@1", sampling=Sampling(), seed=2**31 - 1), policy)

    return asyncio.run(main())


def test_an_answer_ends_the_episode(serving: Any, service: Any, reply: Any) -> None:
    rollout = service([lambda: reply("return x+1")])
    episode = _play(serving, rollout)
    assert (episode.outcome, episode.answer) == (Outcome.COMPLETED, "return x+1")
    assert len(episode.turns) == 1
    request = rollout.requests[0]
    assert request["prompt"] == "add 1\n"
    assert request["max_tokens"] == 8
    assert request["stop"] == ["\n"]
    assert 0 <= request["seed"] < 2**31


def test_an_answer_that_was_cut_off_is_graded_as_it_is(serving: Any, service: Any, reply: Any) -> None:
    episode = _play(serving, service([lambda: reply("return", finish_reason="length")]))
    assert (episode.outcome, episode.answer) == (Outcome.TOKEN_LIMIT, "return")


def test_a_refusal_of_the_rollout_service_is_a_failure_without_an_answer(serving: Any, service: Any) -> None:
    episode = _play(serving, service([lambda: web.Response(status=400, text="no")]))
    assert (episode.outcome, episode.answer) == (Outcome.INFERENCE_FAILED, None)
    assert "HTTP 400" in episode.reason


def test_a_rollout_service_that_never_answers_is_a_failure_in_the_end(serving: Any, service: Any) -> None:
    episode = _play(serving, service([lambda: web.Response(status=503)]), episode_seconds=0.3)
    assert (episode.outcome, episode.answer) == (Outcome.INFERENCE_FAILED, None)
    assert "0.3 s" in episode.reason


def test_the_rollout_services_own_spans_are_kept(serving: Any, service: Any, reply: Any) -> None:
    rollout = service([lambda: {**reply(), "spans": [{"name": "text_completion"}, "nonsense"]}])
    assert _play(serving, rollout).spans == ({"name": "text_completion"},)
    assert rollout.headers[0]["x-tiltyard-spans"] == "1"
