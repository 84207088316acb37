"""Optimizers: what they do to a weight, and that they go on exactly where they stood."""

from pathlib import Path

import pytest
import torch

from services.trainer.muon import Muon, orthogonalised
from services.trainer.optimizer import learning_rate, make, restore, save
from services.trainer.policy import Policy, fresh
from tests.unit.trainer.conftest import TINY
from tiltyard.contracts.run_config import Optimizer

KINDS = ["adamw", "muon"]


def _update(policy: Policy, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """A step along a gradient that only the seed and the weights decide."""
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad(set_to_none=True)
    ids = torch.randint(0, 256, (2, 8), generator=generator)
    policy.model(input_ids=ids).logits.logsumexp(-1).sum().backward()
    optimizer.step()


def _config(kind: str) -> Optimizer:
    return Optimizer.model_validate({"kind": kind, "learning_rate": 1e-3, "weight_decay": 0.01})


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_optimizer_goes_on_exactly_where_it_stood(
    kind: str, policy: Policy, tmp_path: Path
) -> None:
    optimizer = make(policy, _config(kind))
    for seed in range(3):
        _update(policy, optimizer, seed)
    save(optimizer, tmp_path)
    twin = fresh(TINY, seed=1, device="cpu")
    twin.model.load_state_dict(policy.model.state_dict())
    again = make(twin, _config(kind))
    restore(again, tmp_path)

    for seed in range(3, 6):
        _update(policy, optimizer, seed)
        _update(twin, again, seed)

    ours, theirs = policy.model.state_dict(), twin.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_moves(kind: str, policy: Policy) -> None:
    before = {name: p.clone() for name, p in policy.model.named_parameters()}

    _update(policy, make(policy, _config(kind)), 0)

    assert [n for n, p in policy.model.named_parameters() if torch.equal(p, before[n])] == []


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 24)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    values = torch.linalg.svdvals(
        orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    )

    assert float(values.max()) < 1.3
    assert float(values.median()) > 0.6


def test_muon_moves_a_matrix_as_far_whatever_its_gradients_size() -> None:
    moved: list[torch.Tensor] = []
    for scale in (1e-6, 1e3):
        weight = torch.nn.Parameter(torch.zeros(8, 24))
        weight.grad = scale * torch.randn(8, 24, generator=torch.Generator().manual_seed(1))
        Muon([weight], [], lr=0.1, betas=(0.9, 0.95), weight_decay=0.0).step()
        moved.append(weight.detach())

    torch.testing.assert_close(moved[0], moved[1], rtol=1e-3, atol=1e-5)
    assert float(moved[0].square().mean().sqrt()) == pytest.approx(0.1 * 0.2, rel=0.35)


def test_muon_leaves_a_matrix_without_gradient_alone() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))

    Muon([weight], [], lr=0.1, betas=(0.9, 0.95), weight_decay=0.5).step()

    assert torch.equal(weight.detach(), torch.ones(4, 4))


def test_muon_takes_the_matrices_and_leaves_embeddings_and_norms_to_adamw(policy: Policy) -> None:
    optimizer = make(policy, _config("muon"))

    by_kind = {g["orthogonal"]: {id(p) for p in g["params"]} for g in optimizer.param_groups}
    names = {n for n, p in policy.model.named_parameters() if id(p) in by_kind[True]}
    assert names == {n for n, _ in policy.model.named_parameters() if "_proj" in n}
    assert len(by_kind[True] | by_kind[False]) == len(list(policy.model.parameters()))


def test_the_rate_warms_up_stays_and_falls_over_the_second_half() -> None:
    config = Optimizer(learning_rate=1.0, warmup_steps=4)

    rates = [learning_rate(config, step, 100) for step in range(1, 101)]

    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(rates[4:54]) == {1.0}
    assert rates[55:] == sorted(rates[55:], reverse=True)
    assert 0 < rates[-1] <= 0.11


def test_a_constant_rate_stays() -> None:
    config = Optimizer(learning_rate=0.5, warmup_steps=0, decay="constant")

    assert {learning_rate(config, step, 10) for step in range(1, 11)} == {0.5}
