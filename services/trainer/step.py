"""One training step, from samples to changed weights.

Guarantees: the same samples, weights, optimizer state and step number give the same result on the same
machine.
Does not: touch rows or objects."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import AdamW

from services.trainer.batch import Padded, Sample, micro_batches
from services.trainer.loss import Denominators, k3, mismatch_weights, policy_loss, token_logprobs
from services.trainer.optimizer import learning_rate
from services.trainer.policy import Policy
from tiltyard.contracts.run_config import TrainRun

MICRO_TOKENS = 4_096
"""Padded tokens of a micro-batch."""


class NotFinite(ArithmeticError):
    """The loss or the gradient is not a finite number: the run cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """What a step changes: a policy and its optimizer; `reference` is the frozen policy of the KL term."""

    policy: Policy
    optimizer: AdamW
    reference: Policy | None = None


def logprobs(policy: Policy, batch: Padded) -> Tensor:
    """log p of each id, (B, T); 0 in the first column."""
    return token_logprobs(policy.model(input_ids=batch.ids_BT, use_cache=False).logits, batch.ids_BT)


def train_step(learner: Learner, samples: Sequence[Sample], config: TrainRun, step: int) -> dict[str, float]:
    """Update the policy once for each minibatch; figures of the step. Raises `NotFinite`."""
    rate = learning_rate(config.optimizer, step, config.steps)
    for group in learner.optimizer.param_groups:
        group["lr"] = rate
    order = [i for i, s in enumerate(samples) if s.advantage != 0.0 and s.completion]
    random.Random(f"{config.seed}/{step}").shuffle(order)
    learner.policy.model.train()
    old = _old_logprobs(learner, samples, order, config)
    seen = _Seen()
    for part in range(config.minibatches):
        if chosen := order[part :: config.minibatches]:
            _update(learner, samples, chosen, old, config, seen)
    return {"learning_rate": rate, **seen.figures(), **_figures(samples, old)}


class _Seen:
    """Sums over the minibatches of a step."""

    def __init__(self) -> None:
        self.loss, self.norm, self.clipped, self.tokens, self.updates = 0.0, 0.0, 0.0, 0.0, 0

    def figures(self) -> dict[str, float]:
        updates, tokens = max(self.updates, 1), max(self.tokens, 1.0)
        return {
            "loss": self.loss / updates,
            "grad_norm": self.norm / updates,
            "clip_fraction": self.clipped / tokens,
            "updates": float(self.updates),
        }


def _old_logprobs(
    learner: Learner, samples: Sequence[Sample], order: Sequence[int], config: TrainRun
) -> dict[int, Tensor]:
    """log p of each sample's completion under the policy before the step, (T,); empty in bypass mode."""
    if config.loss.importance == "bypass":
        return {}
    old: dict[int, Tensor] = {}
    with torch.no_grad():
        for batch in _batches(learner, samples, order):
            logp_BT = logprobs(learner.policy, batch)
            for at, row in enumerate(batch.rows):
                old[row] = logp_BT[at][batch.mask_BT[at]]
    return old


def _batches(learner: Learner, samples: Sequence[Sample], order: Sequence[int]) -> Iterator[Padded]:
    return micro_batches(
        samples, order, tokens=MICRO_TOKENS, pad=learner.policy.pad, device=learner.policy.device
    )


def _update(
    learner: Learner,
    samples: Sequence[Sample],
    chosen: Sequence[int],
    old: dict[int, Tensor],
    config: TrainRun,
    seen: _Seen,
) -> None:
    totals = Denominators(
        tokens=float(sum(len(samples[i].completion) for i in chosen)), sequences=float(len(chosen))
    )
    learner.optimizer.zero_grad(set_to_none=True)
    for batch in _batches(learner, samples, chosen):
        old_BT = _spread(batch, old) if old else batch.behaviour_BT
        weights_BT = mismatch_weights(old_BT, batch.behaviour_BT, config.loss.importance_cap) if old else None
        part = policy_loss(
            logprobs(learner.policy, batch),
            old_BT,
            weights_BT,
            batch.advantage_B,
            batch.mask_BT,
            totals,
            config.loss,
            _reference(learner, batch),
        )
        part.loss.backward()
        seen.loss += part.loss.item()
        seen.clipped += part.clipped
    norm = torch.nn.utils.clip_grad_norm_(learner.policy.model.parameters(), config.optimizer.max_grad_norm)
    if not torch.isfinite(norm):
        raise NotFinite(f"the gradient's norm is {float(norm)}; lower optimizer.learning_rate")
    learner.optimizer.step()
    seen.norm, seen.tokens, seen.updates = (
        seen.norm + float(norm),
        seen.tokens + totals.tokens,
        seen.updates + 1,
    )


def _spread(batch: Padded, old: dict[int, Tensor]) -> Tensor:
    """Old log-probabilities in the batch's places, (B, T)."""
    old_BT = torch.zeros_like(batch.behaviour_BT)
    for at, row in enumerate(batch.rows):
        old_BT[at][batch.mask_BT[at]] = old[row]
    return old_BT


def _reference(learner: Learner, batch: Padded) -> Tensor | None:
    if learner.reference is None:
        return None
    with torch.no_grad():
        return logprobs(learner.reference, batch)


def _figures(samples: Sequence[Sample], old: dict[int, Tensor]) -> dict[str, float]:
    """Figures of the samples themselves."""
    tokens = [p for s in samples for p in s.behaviour]
    staleness = [s.staleness for s in samples]
    found = {
        "tokens": float(len(tokens)),
        "sequences": float(len(samples)),
        "entropy_estimate": -sum(tokens) / max(len(tokens), 1),
        "completion_length": len(tokens) / max(len(samples), 1),
        "staleness_mean": sum(staleness) / max(len(staleness), 1),
        "staleness_max": float(max(staleness, default=0)),
    }
    if old:
        ours = torch.cat([old[row].detach().cpu() for row in old])
        theirs = torch.cat([torch.tensor(samples[row].behaviour) for row in old])
        weights = (ours - theirs).exp()
        found["mismatch_kl"] = float(k3(theirs, ours).mean())
        found["mismatch_ess"] = float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))
    return found
