"""A training step: makes good answers likelier, cares for nothing else, and can be computed again."""

import pytest
import torch

from services.trainer.batch import Sample
from services.trainer.optimizer import make
from services.trainer.policy import Policy, fresh
from services.trainer.step import Learner, NotFinite, train_step
from tests.unit.trainer.conftest import TINY
from tiltyard.contracts.run_config import TrainRun

PROMPT = "say it: "


def _config(**fields: object) -> TrainRun:
    given = {
        "kind": "train",
        "name": "r",
        "taskset": "t",
        "policy": TINY.model_dump(),
        "steps": 10,
        "minibatches": 1,
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 0},
        "loss": {"importance": "bypass"},
        **fields,
    }
    return TrainRun.model_validate(given)


def _logprobs(policy: Policy, prompt: tuple[int, ...], completion: tuple[int, ...]) -> tuple[float, ...]:
    with torch.no_grad():
        logp = policy.model(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    return tuple(float(logp[len(prompt) + i - 1, c]) for i, c in enumerate(completion))


def _sample(policy: Policy, completion: str, advantage: float, *, drift: float = 0.0) -> Sample:
    prompt, ids = policy.encode(PROMPT, completion)
    behaviour = tuple(p + drift for p in _logprobs(policy, prompt, ids))
    return Sample(prompt=prompt, completion=ids, behaviour=behaviour, advantage=advantage)


def _learner(policy: Policy, config: TrainRun) -> Learner:
    return Learner(policy=policy, optimizer=make(policy, config.optimizer))


def _likelihood(policy: Policy, completion: str) -> float:
    return sum(_logprobs(policy, *policy.encode(PROMPT, completion)))


@pytest.mark.parametrize("importance", ["bypass", "token_truncated"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_step_makes_good_answers_likelier_and_bad_ones_less_likely(
    importance: str, kind: str, policy: Policy
) -> None:
    config = _config(
        loss={"importance": importance},
        optimizer={"kind": kind, "learning_rate": 1e-3, "warmup_steps": 0},
    )
    samples = [_sample(policy, "yes", 0.5), _sample(policy, "no", -0.5)]
    before = _likelihood(policy, "yes"), _likelihood(policy, "no")

    train_step(_learner(policy, config), samples, config, 1)

    assert _likelihood(policy, "yes") > before[0]
    assert _likelihood(policy, "no") < before[1]


def test_a_sample_without_advantage_teaches_nothing(policy: Policy) -> None:
    weights = []
    for extra in (0, 3):
        twin, config = fresh(TINY, seed=0, device="cpu"), _config()
        samples = [_sample(twin, "yes", 0.5), *[_sample(twin, "hm", 0.0)] * extra]
        train_step(_learner(twin, config), samples, config, 1)
        weights.append(twin.model.state_dict())

    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_step_computed_again_gives_the_same_weights() -> None:
    weights = []
    for _ in range(2):
        twin, config = fresh(TINY, seed=0, device="cpu"), _config(minibatches=2)
        samples = [_sample(twin, text, a) for text, a in (("yes", 0.5), ("no", -0.5), ("so", 0.25))]
        train_step(_learner(twin, config), samples, config, 4)
        weights.append(twin.model.state_dict())

    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_each_minibatch_is_an_update_and_every_sample_is_in_one(policy: Policy) -> None:
    config = _config(minibatches=3)
    samples = [_sample(policy, text, 1.0) for text in ("a", "b", "c", "d", "e")]

    figures = train_step(_learner(policy, config), samples, config, 1)

    assert figures["updates"] == 3
    assert figures["tokens"] == sum(len(s.completion) for s in samples)


def test_a_mismatch_between_generator_and_trainer_is_measured(policy: Policy) -> None:
    config = _config(loss={"importance": "token_truncated"})

    same = train_step(_learner(policy, config), [_sample(policy, "yes", 0.5)], config, 1)
    apart = train_step(_learner(policy, config), [_sample(policy, "yes", 0.5, drift=-0.3)], config, 1)

    assert same["mismatch_kl"] == pytest.approx(0, abs=1e-6)
    assert apart["mismatch_kl"] > 0.03
    assert 0 < apart["mismatch_ess"] <= 1 + 1e-6


def test_the_k3_term_holds_the_policy_to_its_reference(policy: Policy) -> None:
    moved = []
    for beta in (0.0, 100.0):
        twin, reference = fresh(TINY, seed=0, device="cpu"), fresh(TINY, seed=0, device="cpu")
        config = _config(loss={"importance": "bypass", "kl_beta": beta})
        learner = Learner(
            policy=twin, optimizer=make(twin, config.optimizer), reference=reference if beta else None
        )
        before = _likelihood(twin, "yes")
        samples = [_sample(twin, "yes", 0.5)]
        for step in range(1, 6):
            train_step(learner, samples, config, step)
        moved.append(abs(_likelihood(twin, "yes") - before))

    assert moved[1] < moved[0]


def test_a_gradient_that_is_no_number_ends_the_run_before_it_changes_a_weight(policy: Policy) -> None:
    config = _config()
    sample = _sample(policy, "yes", 0.5)
    broken = Sample(
        prompt=sample.prompt, completion=sample.completion, behaviour=(float("nan"),) * 4, advantage=0.5
    )
    before = {name: w.clone() for name, w in policy.model.state_dict().items()}

    with pytest.raises(NotFinite, match="learning_rate"):
        train_step(_learner(policy, config), [broken], config, 1)

    assert all(torch.equal(w, before[name]) for name, w in policy.model.state_dict().items())
