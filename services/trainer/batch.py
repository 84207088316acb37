"""Token sequences as padded tensors.

Guarantees: rows of one micro-batch have similar lengths, every row appears once, and padding is on the right,
where causal attention never looks.
Does not: tokenise; ids come from the generator as they were sampled."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sequence to learn from."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    behaviour: tuple[float, ...] = ()
    """log p of each completion token when it was sampled; empty in a warm start."""
    advantage: float = 0.0
    staleness: int = 0
    """Policy versions between the oldest completion token and the policy that is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """A micro-batch."""

    rows: tuple[int, ...]
    """Index of each row's sample."""
    ids_BT: Tensor
    mask_BT: Tensor
    """True on completion tokens."""
    behaviour_BT: Tensor
    advantage_B: Tensor


def micro_batches(
    samples: Sequence[Sample], order: Sequence[int], *, tokens: int, pad: int, device: str
) -> Iterator[Padded]:
    """The samples named by `order`, longest last, in batches of at most `tokens` padded tokens (one row at
    least)."""
    waiting = sorted(order, key=lambda i: (len(samples[i].prompt) + len(samples[i].completion), i))
    while waiting:
        taken, width = 0, 0
        for index in waiting:
            length = len(samples[index].prompt) + len(samples[index].completion)
            if taken and max(width, length) * (taken + 1) > tokens:
                break
            taken, width = taken + 1, max(width, length)
        yield _padded(samples, tuple(waiting[:taken]), width, pad, device)
        waiting = waiting[taken:]


def _padded(samples: Sequence[Sample], rows: tuple[int, ...], width: int, pad: int, device: str) -> Padded:
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    behaviour = torch.zeros((len(rows), width))
    for at, row in enumerate(rows):
        sample = samples[row]
        start, end = len(sample.prompt), len(sample.prompt) + len(sample.completion)
        ids[at, :end] = torch.tensor(sample.prompt + sample.completion)
        mask[at, start:end] = True
        if sample.behaviour:
            behaviour[at, start:end] = torch.tensor(sample.behaviour)
    return Padded(
        rows=rows,
        ids_BT=ids.to(device),
        mask_BT=mask.to(device),
        behaviour_BT=behaviour.to(device),
        advantage_B=torch.tensor([samples[r].advantage for r in rows]).to(device),
    )
