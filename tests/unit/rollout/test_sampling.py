"""Draws follow the distribution that the log-probabilities tell."""

import math

import pytest
import torch

from services.rollout.engine import Ask
from services.rollout.noise import key_of
from services.rollout.sampling import draw
from services.rollout.sequence import Sequence

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -float("inf")])


def rows(count: int, *, temperature: float = 1.0, top_p: float = 1.0, top: int = 0) -> list[Sequence]:
    def ask(seed: int) -> Ask:
        return Ask(
            prompt="p",
            max_tokens=1,
            temperature=temperature,
            top_p=top_p,
            seed=key_of(seed),
            top_logprobs=top,
        )

    return [
        Sequence(ask(seed), lambda: pytest.fail("not chosen here"), lambda _: None) for seed in range(count)
    ]


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.8), (0.7, 0.5)]
)
def test_frequencies_match_the_told_probabilities(temperature: float, top_p: float) -> None:
    count = 20_000
    tokens, logprobs = draw(LOGITS.repeat(count, 1), rows(count, temperature=temperature, top_p=top_p))
    told = dict(zip(tokens, logprobs, strict=True))
    assert math.isclose(sum(math.exp(p) for p in told.values()), 1.0, abs_tol=1e-5)
    for token, logprob in told.items():
        p = math.exp(logprob)
        assert abs(tokens.count(token) / count - p) < 5 * math.sqrt(p * (1 - p) / count) + 1e-9
    assert 4 not in told, "probability zero is never drawn"


def test_top_p_keeps_the_fewest_likeliest_tokens_that_reach_it() -> None:
    """Probabilities .644 .237 .087 .032: .8 is reached by two, .64 by one, .65 by two."""
    for top_p, kept in ((0.8, {0, 1}), (0.64, {0}), (0.65, {0, 1}), (0.9, {0, 1, 2}), (1e-9, {0})):
        tokens, _ = draw(LOGITS.repeat(3_000, 1), rows(3_000, top_p=top_p))
        assert set(tokens) == kept


def test_temperature_zero_takes_the_likeliest_with_its_own_probability() -> None:
    tokens, logprobs = draw(LOGITS.repeat(9, 1), rows(9, temperature=0.0, top_p=0.1))
    assert tokens == [0] * 9
    assert logprobs == pytest.approx([torch.log_softmax(LOGITS, 0)[0].item()] * 9)


def test_rows_with_different_rules_do_not_touch_each_other() -> None:
    mixed = [*rows(5), *rows(5, temperature=0.0), *rows(5, top_p=0.5), *rows(5, temperature=3.0)]
    together = draw(LOGITS.repeat(20, 1), mixed)
    alone = [draw(LOGITS[None], [row]) for row in mixed]
    assert together[0] == [tokens[0] for tokens, _ in alone]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in alone], abs=1e-6)


def test_the_likeliest_are_told_to_those_who_asked() -> None:
    asked, other = rows(1, top=2)[0], rows(1)[0]
    draw(LOGITS.repeat(2, 1), [asked, other])
    assert list(asked.top[0]) == [0, 1]
    assert other.top == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_an_error_and_no_token(value: float) -> None:
    logits = LOGITS.repeat(2, 1)
    logits[1, 0] = value
    with pytest.raises(ValueError, match="not finite"):
        draw(logits, rows(2))
