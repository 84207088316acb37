"""The policy loss: equal to the published formulas, and to itself however it is cut into micro-batches.

`golden/loss.json` was computed in float64 by an independent reference of 57 lines, which was checked against
TRL 1.16.0 (`GRPOTrainer._compute_loss`) and verl 0.9.1 (`core_algos`): 16 sequences of at most 12 tokens,
some of them masked, in groups of 4, one group without spread."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.trainer.loss import Denominators, k3, mismatch_weights, policy_loss, token_logprobs
from tiltyard.contracts.run_config import Loss

DATA: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "loss.json").read_text())
INPUTS, GOLDEN = DATA["inputs"], DATA["golden"]
ALL = slice(None)


def _input(name: str) -> Tensor:
    return torch.tensor(INPUTS[name], dtype=torch.float64)


MASK = _input("mask").bool()
OLD, BEHAVIOUR, REFERENCE = _input("old"), _input("beh"), _input("ref")
ADVANTAGE = torch.tensor(GOLDEN["advantage"]["dr_grpo"], dtype=torch.float64)
TOTALS = Denominators(tokens=float(MASK.sum()), sequences=float(len(MASK)))
SPREAD = OLD + 5 * (_input("new") - OLD)
"""Log-ratios five times as wide, so that the dual clip acts."""


def _loss(
    config: Loss, *, new: Tensor | None = None, weights: Tensor | None = None, rows: slice = ALL
) -> tuple[float, Tensor]:
    """Loss and gradient of some rows, with the denominators of all."""
    leaf = (_input("new") if new is None else new).clone().requires_grad_(True)
    part = policy_loss(
        leaf[rows],
        OLD[rows],
        None if weights is None else weights[rows],
        ADVANTAGE[rows],
        MASK[rows],
        TOTALS,
        config,
        REFERENCE[rows] if config.kl_beta else None,
    )
    (gradient,) = torch.autograd.grad(part.loss, leaf)
    return part.loss.item(), gradient


def _config(aggregation: str = "token", **fields: Any) -> Loss:
    given = {"aggregation": aggregation, "constant_length": INPUTS["T"], "dual_clip": None, **fields}
    return Loss.model_validate(given)


@pytest.mark.parametrize(
    ("golden", "config"),
    [
        ("dapo", _config()),
        ("grpo", _config("sequence")),
        ("dr_grpo", _config("constant")),
        ("dapo_dual_clip", _config(dual_clip=3.0)),
        ("dapo_k3_beta_05", _config(kl_beta=0.05)),
    ],
)
def test_loss_and_gradient_are_the_published_ones(golden: str, config: Loss) -> None:
    loss, gradient = _loss(config)

    assert loss == pytest.approx(GOLDEN[golden]["loss"], abs=1e-12)
    assert float(gradient.norm()) == pytest.approx(GOLDEN[golden]["grad_norm"], abs=1e-12)


def test_the_dual_clip_bounds_what_a_bad_sample_can_cost() -> None:
    loss, gradient = _loss(_config(dual_clip=3.0), new=SPREAD)

    assert loss == pytest.approx(GOLDEN["dapo_dual_clip_spread"]["loss"], abs=1e-12)
    assert float(gradient.norm()) == pytest.approx(GOLDEN["dapo_dual_clip_spread"]["grad_norm"], abs=1e-12)
    assert loss < _loss(_config(), new=SPREAD)[0]


def test_truncated_importance_weights_are_the_published_ones() -> None:
    loss, gradient = _loss(_config(), weights=mismatch_weights(OLD, BEHAVIOUR, 2.0))

    assert loss == pytest.approx(GOLDEN["dapo_token_tis_2"]["loss"], abs=1e-12)
    assert float(gradient.norm()) == pytest.approx(GOLDEN["dapo_token_tis_2"]["grad_norm"], abs=1e-12)


@pytest.mark.parametrize("cut", [1, 5, 15])
def test_micro_batches_add_up_to_the_full_loss(cut: int) -> None:
    weights, config = mismatch_weights(OLD, BEHAVIOUR, 2.0), _config(dual_clip=3.0)
    parts = [_loss(config, new=SPREAD, weights=weights, rows=r) for r in (slice(cut), slice(cut, None))]

    golden = GOLDEN["spread_dual_clip_token_tis"]
    assert sum(loss for loss, _ in parts) == pytest.approx(golden["full"], abs=1e-12)
    whole = _loss(config, new=SPREAD, weights=weights)[1]
    torch.testing.assert_close(sum(gradient for _, gradient in parts), whole)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_a_masked_token_has_no_gradient(aggregation: str) -> None:
    _, gradient = _loss(_config(aggregation))

    assert not gradient[~MASK].any()
    assert gradient[MASK].any()


def test_a_group_without_spread_has_no_gradient() -> None:
    _, gradient = _loss(_config())

    assert not gradient[: INPUTS["G"]].any()


def test_importance_weights_carry_no_gradient() -> None:
    old = OLD.clone().requires_grad_(True)

    assert not mismatch_weights(old, BEHAVIOUR, 2.0).requires_grad


def test_k3_is_never_negative_and_zero_only_for_equal_policies() -> None:
    assert bool((k3(_input("new"), REFERENCE) > 0).all())
    assert not k3(REFERENCE, REFERENCE).any()


def test_token_logprobs_are_those_of_each_id_given_the_ids_before() -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))

    found = token_logprobs(logits, ids)

    assert found.dtype == torch.float32
    assert not found[:, 0].any()
    for row in range(2):
        for at in range(1, 5):
            expected = logits[row, at - 1].log_softmax(-1)[ids[row, at]]
            torch.testing.assert_close(found[row, at], expected)
