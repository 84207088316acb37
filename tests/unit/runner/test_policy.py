"""The policy gives whole turns or typed errors, and asks again only where that may help."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from services.runner.policy import InferenceFailed, Request
from tiltyard.contracts.records import Turn
from tiltyard.contracts.run_config import Sampling

REQUEST = Request(
    model="run@7", context="def f", max_tokens=9, sampling=Sampling(temperature=0.5), stop=("\n",), seed=4
)


def _ask(serving: Any, service: Any, request: Request = REQUEST) -> Turn:
    async def main() -> Turn:
        async with asyncio.timeout(20), serving(service) as policy:
            return await policy.turn(request, [])

    return asyncio.run(main())


def test_a_turn_holds_what_the_policy_said_and_what_it_saw(serving: Any, service: Any, reply: Any) -> None:
    rollout = service([lambda: reply("hi")])
    turn = _ask(serving, rollout)
    assert turn == Turn(
        prompt_token_ids=(1, 2),
        token_ids=(104, 105),
        logprobs=(-0.5, -0.5),
        policy_versions=(3, 3),
        text="hi",
        finish_reason="stop",
    )
    assert rollout.requests == [
        {
            "model": "run@7",
            "prompt": "def f",
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 1.0,
            "stop": ["\n"],
            "seed": 4,
            "logprobs": 0,
            "return_token_ids": True,
        }
    ]


def test_later_turns_send_token_ids(serving: Any, service: Any, reply: Any) -> None:
    rollout = service([reply])
    later = Request(model="m@1", context=(5, 6), max_tokens=1, sampling=Sampling(), stop=(), seed=0)
    _ask(serving, rollout, later)
    assert rollout.requests[0]["prompt"] == [5, 6]


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_what_may_pass_is_asked_again(serving: Any, service: Any, reply: Any, status: int) -> None:
    rollout = service([lambda: web.Response(status=status), lambda: web.Response(status=status), reply])
    assert _ask(serving, rollout).text == "ok"
    assert len(rollout.requests) == 3


def test_a_refusal_is_not_asked_again(serving: Any, service: Any) -> None:
    rollout = service([lambda: web.Response(status=400, text="max_tokens is negative")])
    with pytest.raises(InferenceFailed, match="HTTP 400: max_tokens is negative"):
        _ask(serving, rollout)
    assert len(rollout.requests) == 1


def _without(reply: Any, key: str) -> Any:
    body = reply()
    del body["choices"][0][key]
    return body


@pytest.mark.parametrize("key", ["token_ids", "logprobs", "policy_versions", "text", "prompt_token_ids"])
def test_an_answer_that_lacks_a_part_is_a_failure(serving: Any, service: Any, reply: Any, key: str) -> None:
    with pytest.raises(InferenceFailed, match=key):
        _ask(serving, service([lambda: _without(reply, key)]))


def _changed(reply: Any, **changes: Any) -> Any:
    body = reply()
    body["choices"][0].update(changes)
    return body


@pytest.mark.parametrize(
    "changes",
    [
        {"policy_versions": [1]},
        {"token_ids": []},
        {"token_ids": ["x", "y"]},
        {"logprobs": {"token_logprobs": [None, None]}},
        {"logprobs": None},
    ],
)
def test_parts_that_do_not_agree_are_a_failure(
    serving: Any, service: Any, reply: Any, changes: dict[str, Any]
) -> None:
    with pytest.raises(InferenceFailed):
        _ask(serving, service([lambda: _changed(reply, **changes)]))


def test_no_json_and_no_choice_are_failures(serving: Any, service: Any) -> None:
    for bad in (web.Response(text="hello"), web.Response(text="{", content_type="application/json")):
        with pytest.raises(InferenceFailed):
            _ask(serving, service([lambda bad=bad: bad]))
    with pytest.raises(InferenceFailed, match="lacks a part"):
        _ask(serving, service([lambda: {"choices": []}]))


def test_a_lone_surrogate_is_kept_out_of_every_store(serving: Any, service: Any, reply: Any) -> None:
    turn = _ask(serving, service([lambda: _changed(reply, text="a\ud800")]))
    assert turn.text == "a?"


def test_nothing_is_asked_while_the_runner_may_not_act(serving: Any, service: Any, reply: Any) -> None:
    rollout = service([reply])

    async def main() -> None:
        may_act = asyncio.Event()
        async with serving(rollout, may_act) as policy:
            asking = asyncio.create_task(policy.turn(REQUEST, []))
            await asyncio.sleep(0.05)
            assert rollout.requests == []
            may_act.set()
            assert (await asking).text == "ok"

    asyncio.run(main())
