"""The warm start: learns what it is shown, stops by likelihood, refuses what is no dataset."""

import json
import math

import pytest
import torch

from services.trainer.policy import Policy, fresh
from services.trainer.step import NotFinite
from services.trainer.warmstart import BadDataset, mean_likelihood, read_dataset, warm_start
from tests.unit.trainer.conftest import TINY
from tiltyard.contracts.run_config import Optimizer, SftRun

LINES = b"".join(
    json.dumps({"prompt": f"{a}?", "completion": a.upper()}).encode() + b"\n" for a in "abcd" * 10
)


def _config(**fields: object) -> SftRun:
    given = {
        "kind": "sft",
        "name": "warm",
        "dataset": "sha256:" + "0" * 64,
        "steps": 80,
        "batch": 8,
        "optimizer": Optimizer(
            kind="muon", learning_rate=1e-2, warmup_steps=5, decay="constant"
        ).model_dump(),
        **fields,
    }
    return SftRun.model_validate(given)


def _nothing(step: int, loss: float) -> None:
    pass


def test_likelihood_is_the_probability_of_whole_completions(policy: Policy) -> None:
    (sample, *_) = read_dataset(LINES, policy)

    expected = math.exp(sum(_logprobs(policy, sample.prompt, sample.completion)))
    assert mean_likelihood(policy, [sample, sample]) == pytest.approx(expected, rel=1e-4)


def _logprobs(policy: Policy, prompt: tuple[int, ...], completion: tuple[int, ...]) -> list[float]:
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        logp = policy.model(input_ids=ids).logits[0].log_softmax(-1)
    return [float(logp[len(prompt) + i - 1, c]) for i, c in enumerate(completion)]


def test_a_policy_learns_what_it_is_shown_and_then_stops(policy: Policy) -> None:
    samples = read_dataset(LINES, policy)

    warmed = warm_start(policy, samples, _config(stop_likelihood=0.5), on_step=_nothing)

    assert warmed.steps < 80
    assert warmed.likelihood is not None
    assert warmed.likelihood >= 0.5
    assert mean_likelihood(policy, samples) > 0.4


def test_without_a_bound_every_step_is_done(policy: Policy) -> None:
    steps: list[int] = []

    warmed = warm_start(
        policy, read_dataset(LINES, policy), _config(steps=3), on_step=lambda s, _: steps.append(s)
    )

    assert (warmed.steps, steps) == (3, [1, 2, 3])


def test_two_warm_starts_give_the_same_weights() -> None:
    weights = []
    for _ in range(2):
        one = fresh(TINY, seed=3, device="cpu")
        warm_start(one, read_dataset(LINES, one), _config(steps=4), on_step=_nothing)
        weights.append(one.model.state_dict())

    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_rate_that_explodes_is_named_and_not_published(policy: Policy) -> None:
    with torch.no_grad():
        policy.model.lm_head.weight.fill_(float("inf"))

    with pytest.raises(NotFinite, match=r"lower optimizer\.learning_rate"):
        warm_start(policy, read_dataset(LINES, policy), _config(steps=2), on_step=_nothing)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"prompt": "a", "completion": "b"}\nnot json\n', "line 2"),
        (b'{"prompt": "a"}\n', "line 1"),
        (b'["a", "b"]\n', "line 1"),
        (b'{"prompt": 1, "completion": "b"}\n', "line 1"),
        (b'{"prompt": "a", "completion": "b"}\n', "1 lines; at least 2"),
        (b"", "0 lines; at least 2"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_what_is_no_dataset_is_refused_by_line(data: bytes, says: str, policy: Policy) -> None:
    with pytest.raises(BadDataset, match=says):
        read_dataset(data, policy)
