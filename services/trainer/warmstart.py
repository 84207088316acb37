"""The supervised warm start: a policy learns to imitate completions.

Guarantees: deterministic in (config, dataset); no completion is executed: it stops by likelihood or by steps.
Does not: keep checkpoints on the way; killed, it begins anew."""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from services.trainer.batch import Sample, micro_batches
from services.trainer.optimizer import learning_rate, make
from services.trainer.policy import Policy
from services.trainer.step import MICRO_TOKENS, NotFinite, logprobs
from tiltyard.contracts.run_config import SftRun

HELD_BACK = 200
"""Lines at the end of the dataset that are only measured."""
MEASURE_EVERY = 5
MEASURE_FROM = 40


class BadDataset(ValueError):
    """The dataset is not JSON lines of {"prompt", "completion"}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """How a warm start ended."""

    steps: int
    loss: float
    likelihood: float | None
    """Mean probability of a held-back completion, a lower bound of how often the policy would write it."""


def read_dataset(data: bytes, policy: Policy) -> list[Sample]:
    """The dataset's lines as samples. Raises `BadDataset` with the line's number."""
    samples: list[Sample] = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            row = json.loads(line)
            prompt, completion = policy.encode(row["prompt"], row["completion"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadDataset(
                f'line {number} is not {{"prompt": text, "completion": text}}: {error!r}'
            ) from error
        samples.append(Sample(prompt=prompt, completion=completion))
    if len(samples) < 2:
        raise BadDataset(f"the dataset has {len(samples)} lines; at least 2 are needed")
    return samples


def warm_start(
    policy: Policy, samples: Sequence[Sample], config: SftRun, *, on_step: Callable[[int, float], None]
) -> Warmed:
    """Train `policy` in place. `on_step` may raise to stop. Raises `NotFinite`."""
    back = min(HELD_BACK, len(samples) // 5)
    learn, held = samples[: len(samples) - back], samples[len(samples) - back :]
    optimizer, draw = make(policy, config.optimizer), random.Random(config.seed)
    loss, likelihood = math.nan, None
    for step in range(1, config.steps + 1):
        chosen = [draw.randrange(len(learn)) for _ in range(config.batch)]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optimizer, step, config.steps)
        loss = _update(policy, optimizer, learn, chosen, config)
        on_step(step, loss)
        if held and step >= MEASURE_FROM and step % MEASURE_EVERY == 0:
            likelihood = mean_likelihood(policy, held)
            if config.stop_likelihood is not None and likelihood >= config.stop_likelihood:
                return Warmed(steps=step, loss=loss, likelihood=likelihood)
    return Warmed(steps=config.steps, loss=loss, likelihood=likelihood)


def _update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    chosen: Sequence[int],
    config: SftRun,
) -> float:
    total, loss = sum(len(samples[i].completion) for i in chosen), 0.0
    policy.model.train()
    optimizer.zero_grad(set_to_none=True)
    for batch in micro_batches(samples, chosen, tokens=MICRO_TOKENS, pad=policy.pad, device=policy.device):
        part = -(logprobs(policy, batch) * batch.mask_BT).sum() / total
        part.backward()
        loss += part.item()
    norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), config.optimizer.max_grad_norm)
    if not torch.isfinite(norm):
        raise NotFinite(f"the gradient's norm is {float(norm)}; lower optimizer.learning_rate")
    optimizer.step()
    return loss


@torch.no_grad()
def mean_likelihood(policy: Policy, samples: Sequence[Sample]) -> float:
    """Mean over samples of exp(Σ log p of the completion)."""
    policy.model.eval()
    total = 0.0
    for batch in micro_batches(
        samples, range(len(samples)), tokens=MICRO_TOKENS, pad=policy.pad, device=policy.device
    ):
        total += float((logprobs(policy, batch) * batch.mask_BT).sum(1).exp().sum())
    return total / len(samples)
