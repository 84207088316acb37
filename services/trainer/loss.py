"""The policy loss.

Guarantees: the formulas and signs of the papers named below, checked against golden numbers
(tests/unit/trainer/test_loss.py); denominators are counts over the whole minibatch, so that micro-batches add
up to exactly the full loss.
Does not: compute advantages (`core.group`).

Suffixes: _BT is (sequences, tokens); masks are bool; log-probabilities are float32 or wider."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltyard.contracts.run_config import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over a whole minibatch, over all micro-batches and ranks."""

    tokens: float
    sequences: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """A micro-batch's share of the loss, and what it saw."""

    loss: Tensor
    """Scalar; the sum over micro-batches is the minibatch's loss."""
    clipped: float
    """Tokens whose ratio was clipped."""


def token_logprobs(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """log p of each id given what precedes it, (B, T), float32; the first column is 0.

    `logits_BTV` (B, T, V) are the model's for the same ids."""
    logp_BT = -F.cross_entropy(logits_BTV[:, :-1].float().transpose(1, 2), ids_BT[:, 1:], reduction="none")
    return F.pad(logp_BT, (1, 0))


def clipped_loss(
    new_BT: Tensor, old_BT: Tensor, advantage_B: Tensor, *, low: float, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """PPO's clipped loss a token, (B, T), and where clipping was active.

    ℓ = max(−A ρ, −A clip(ρ, 1−low, 1+high)), ρ = exp(new − old) (arXiv 1707.06347; clip-higher: arXiv
    2503.14476); where A < 0, ℓ = min(ℓ, −A·dual) (dual clip: arXiv 1912.09729)."""
    ratio_BT, advantage_B1 = (new_BT - old_BT).exp(), advantage_B[:, None]
    free_BT = -advantage_B1 * ratio_BT
    held_BT = -advantage_B1 * ratio_BT.clamp(1 - low, 1 + high)
    loss_BT = torch.maximum(free_BT, held_BT)
    if dual is not None:
        loss_BT = torch.where(advantage_B1 < 0, torch.minimum(loss_BT, -advantage_B1 * dual), loss_BT)
    return loss_BT, loss_BT != free_BT


def mismatch_weights(old_BT: Tensor, behaviour_BT: Tensor, cap: float) -> Tensor:
    """Truncated importance weights min(exp(old − behaviour), cap), detached, (B, T).

    Corrects what generator and trainer compute differently for the same weights (arXiv 2503.14476 appendix;
    the decoupled form: arXiv 2110.00641)."""
    return (old_BT - behaviour_BT).exp().clamp(max=cap).detach()


def k3(new_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """The k3 estimate of KL(new ‖ reference) a token, ≥ 0 (J. Schulman, "Approximating KL Divergence",
    2020)."""
    difference_BT = reference_BT - new_BT
    return difference_BT.exp() - difference_BT - 1


def aggregate(loss_BT: Tensor, mask_BT: Tensor, mode: str, totals: Denominators, *, length: int) -> Tensor:
    """Add tokens up to a scalar: `token` over all tokens, `sequence` over the mean of each sequence,
    `constant` over sequences × `length` (Dr.GRPO, arXiv 2503.20783)."""
    if mode == "sequence":
        each_B = (loss_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
        return each_B.sum() / totals.sequences
    total = (loss_BT * mask_BT).sum()
    return total / (totals.tokens if mode == "token" else totals.sequences * length)


def policy_loss(
    new_BT: Tensor,
    old_BT: Tensor,
    weights_BT: Tensor | None,
    advantage_B: Tensor,
    mask_BT: Tensor,
    totals: Denominators,
    config: Loss,
    reference_BT: Tensor | None = None,
) -> LossSum:
    """One micro-batch's share; `mask_BT` marks the tokens that the policy sampled."""
    loss_BT, clipped_BT = clipped_loss(
        new_BT, old_BT, advantage_B, low=config.clip_low, high=config.clip_high, dual=config.dual_clip
    )
    if weights_BT is not None:
        loss_BT = loss_BT * weights_BT
    if reference_BT is not None:
        loss_BT = loss_BT + config.kl_beta * k3(new_BT, reference_BT)
    return LossSum(
        loss=aggregate(loss_BT, mask_BT, config.aggregation, totals, length=config.constant_length),
        clipped=float((clipped_BT & mask_BT).sum()),
    )
