"""The two services that compute, on an accelerator: what they give there is what they give on a CPU."""

from pathlib import Path

import pytest
import torch

from services.rollout.batch import TorchBatch
from services.rollout.checkpoint_policy import CheckpointPolicy, load_checkpoint
from services.rollout.engine import Ask
from services.rollout.noise import key_of
from services.rollout.sequence import Sequence
from services.trainer.batch import Sample
from services.trainer.optimizer import make, restore, save
from services.trainer.policy import Policy, fresh, load
from services.trainer.step import Learner, train_step
from tiltyard.contracts.run_config import FreshPolicy, TrainRun

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
SMALL = FreshPolicy(hidden_size=128, layers=3, heads=4, max_positions=128)


def _config(kind: str) -> TrainRun:
    return TrainRun.model_validate(
        {
            "kind": "train",
            "name": "gpu",
            "taskset": "t",
            "policy": SMALL.model_dump(),
            "minibatches": 2,
            "optimizer": {"kind": kind, "learning_rate": 1e-3, "warmup_steps": 0},
        }
    )


def _samples(policy: Policy) -> list[Sample]:
    texts = (("add 1 to a", "return a+1", 0.5), ("add 1 to a", "return a", -0.5), ("b", "return b", 0.25))
    made: list[Sample] = []
    for prompt, completion, advantage in texts:
        ids, tokens = policy.encode(prompt, completion)
        behaviour = (-5.5,) * len(tokens)
        made.append(Sample(prompt=ids, completion=tokens, behaviour=behaviour, advantage=advantage))
    return made


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_train_step_gives_the_same_weights_as_on_a_cpu(kind: str) -> None:
    weights, norms = [], []
    for device in ("cpu", DEVICE):
        policy, config = fresh(SMALL, seed=0, device=device), _config(kind)
        learner = Learner(policy=policy, optimizer=make(policy, config.optimizer))
        norms.append(train_step(learner, _samples(policy), config, 1)["grad_norm"])
        weights.append({name: w.cpu() for name, w in policy.model.state_dict().items()})

    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    for name, ours in weights[0].items():
        torch.testing.assert_close(weights[1][name], ours, rtol=0, atol=5e-4, msg=name)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_checkpoint_made_here_goes_on_where_it_stood(kind: str, tmp_path: Path) -> None:
    config, policy = _config(kind), fresh(SMALL, seed=0, device=DEVICE)
    learner = Learner(policy=policy, optimizer=make(policy, config.optimizer))
    train_step(learner, _samples(policy), config, 1)
    policy.save(tmp_path)
    save(learner.optimizer, tmp_path)
    twin = load(tmp_path, DEVICE)
    again = Learner(policy=twin, optimizer=make(twin, config.optimizer))
    restore(again.optimizer, tmp_path)

    for one in (learner, again):
        train_step(one, _samples(one.policy), config, 2)

    for name, ours in policy.model.state_dict().items():
        torch.testing.assert_close(twin.model.state_dict()[name], ours, rtol=0, atol=1e-5, msg=name)


@pytest.fixture
def served(tmp_path: Path) -> CheckpointPolicy:
    """A policy that the trainer saved, as the rollout service loads it."""
    fresh(SMALL, seed=0, device="cpu").save(tmp_path)
    return load_checkpoint(tmp_path, run_id="run", version=0, device=DEVICE)


def _generated(served: CheckpointPolicy, count: int) -> list[Sequence]:
    made: list[Sequence] = []
    for index in range(count):
        ask = Ask(prompt=f"say {index % 3}", max_tokens=5 + index, temperature=1.0, seed=key_of(index))
        one = Sequence(ask, lambda: served, lambda _: None)
        one.begin(served)
        made.append(one)
    batch = TorchBatch(served)
    batch.admit(made)
    while batch.rows:
        batch.step()
    return made


def test_log_probabilities_are_those_of_a_plain_forward_pass(served: CheckpointPolicy) -> None:
    for one in _generated(served, 8):
        prompt, tokens = one.prompt, tuple(one.tokens)
        with torch.inference_mode():
            logits = served.model(input_ids=torch.tensor([[*prompt, *tokens]], device=DEVICE)).logits[0]
        logp = logits.float().log_softmax(-1)[len(prompt) - 1 : -1]
        plain = logp.gather(1, torch.tensor(tokens, device=DEVICE)[:, None])[:, 0].tolist()

        assert one.logprobs == pytest.approx(plain, abs=2e-3)


def test_what_the_engine_samples_is_near_on_policy_for_the_trainer(
    served: CheckpointPolicy, tmp_path: Path
) -> None:
    config, policy = _config("adamw"), load(tmp_path, DEVICE)
    samples = [
        Sample(prompt=one.prompt, completion=tuple(one.tokens), behaviour=tuple(one.logprobs), advantage=0.5)
        for one in _generated(served, 8)
    ]

    figures = train_step(Learner(policy=policy, optimizer=make(policy, config.optimizer)), samples, config, 1)

    assert figures["mismatch_kl"] < 1e-4
    assert figures["mismatch_ess"] > 0.999
