"""Muon: momentum, orthogonalised, for a network's weight matrices; AdamW for everything else.

Guarantees: computes in the parameters' own precision (bfloat16 is slow on CPUs without it); its state is
saved and restored like AdamW's; a learning rate that suits AdamW suits it.
Does not: touch embeddings or vectors: those are AdamW's.

K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); the scale is that of
arXiv 2502.16982."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan's quintic iteration: singular values end between about 0.7 and 1.2, after few rounds."""
ROUNDS = 5
MOMENTUM = 0.95
RMS = 0.2
"""Root mean square of AdamW's updates, which the scale imitates."""


def orthogonalised(stack: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrix of each matrix of a stack, (N, R, C) with R ≤ C, approximately."""
    a, b, c = COEFFICIENTS
    x = stack / stack.flatten(1).norm(dim=1).clamp(min=1e-20)[:, None, None]
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(AdamW):
    """AdamW with one more group, `orthogonal`, of matrices (2-D parameters)."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        others: Iterable[Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        groups: list[dict[str, Any]] = [
            {"params": list(others), "orthogonal": False},
            {"params": list(matrices), "orthogonal": True},
        ]
        super().__init__([g for g in groups if g["params"]], lr=lr, betas=betas, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient; the matrices' gradients are used up."""
        for group in self.param_groups:
            if group["orthogonal"]:
                self._matrices(group)
        super().step(closure)

    def _matrices(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                alike.setdefault(tuple(parameter.shape), []).append(parameter)
        for shape, parameters in alike.items():
            updates = torch.stack([self._direction(p) for p in parameters])
            wide = updates if shape[0] <= shape[1] else updates.mT
            turned = orthogonalised(wide)
            self._apply(parameters, turned if shape[0] <= shape[1] else turned.mT, group)
            for parameter in parameters:
                parameter.grad = None

    def _direction(self, parameter: Tensor) -> Tensor:
        """Nesterov's momentum."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"], state["momentum"] = torch.tensor(0.0), torch.zeros_like(parameter)
        state["step"] += 1
        momentum = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(momentum, MOMENTUM)

    @staticmethod
    def _apply(parameters: Sequence[Tensor], updates: Tensor, group: dict[str, Any]) -> None:
        scale = group["lr"] * RMS * max(updates.shape[-2:]) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)
