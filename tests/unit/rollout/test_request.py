"""What a body may hold."""

from typing import Any

import pytest

from services.rollout.request import CompletionRequest
from tiltyard.contracts.document import InvalidDocument, parse


def request(**changes: Any) -> CompletionRequest:
    return parse(CompletionRequest, {"model": "r@1", "prompt": "p", **changes}, what="the request")


def test_the_defaults_are_openais() -> None:
    (ask,) = request().asks()
    assert (ask.max_tokens, ask.temperature, ask.top_p, ask.stop) == (16, 1.0, 1.0, ())


def test_choices_of_one_seed_differ_and_the_first_stays_the_same() -> None:
    one, many = request(seed=3).asks(), request(seed=3, n=4).asks()
    assert many[0] == one[0]
    assert len({ask.seed for ask in many}) == 4


def test_without_a_seed_two_requests_differ() -> None:
    assert request().asks()[0].seed != request().asks()[0].seed


def test_stop_is_a_string_or_a_list() -> None:
    assert request(stop="\n").asks()[0].stop == (b"\n",)
    assert request(stop=["a", "b"]).asks()[0].stop == (b"a", b"b")
    assert request(stop=None).asks()[0].stop == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_token": 3}, "did you mean 'max_tokens'"),
        ({"logit_bias": {}}, "unknown key 'logit_bias'"),
        ({"prompt": ["a", "b"]}, "one prompt a request"),
        ({"prompt": [1, True]}, "one prompt a request"),
        ({"prompt": [1, -1]}, "one prompt a request"),
        ({"prompt": None}, "one prompt a request"),
        ({"prompt": "a\ud800"}, "surrogates"),
        ({"stream": True}, "stream"),
        ({"n": 0}, "greater than or equal to 1"),
        ({"temperature": -1}, "greater than or equal to 0"),
        ({"top_p": 0}, "greater than 0"),
        ({"temperature": float("nan")}, "finite"),
        ({"stop": ""}, "stop"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDocument, match=words):
        request(**changes)
