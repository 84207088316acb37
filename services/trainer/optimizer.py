"""The optimizer of a config, its schedule, and its state as safetensors.

Guarantees: a restored optimizer continues exactly where it stood.
Does not: pickle."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Embedding, Linear, Module
from torch.optim import AdamW

from services.trainer.muon import Muon
from services.trainer.policy import Policy
from tiltyard.contracts.run_config import Optimizer

FILE = "optimizer.safetensors"


def make(policy: Policy, config: Optimizer) -> AdamW:
    """The optimizer that the config names; Muon is an AdamW too, and kept in the same way."""
    if config.kind == "adamw":
        return AdamW(
            policy.model.parameters(),
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
    matrices = list(_matrices(policy.model))
    apart = {id(p) for p in matrices}
    return Muon(
        matrices,
        [p for p in policy.model.parameters() if id(p) not in apart],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
    )


def _matrices(model: Module) -> Iterator[Tensor]:
    """Weights of linear layers, without those that are shared with an embedding."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, Embedding)}
    for module in model.modules():
        if isinstance(module, Linear) and id(module.weight) not in embeddings:
            yield module.weight


def learning_rate(config: Optimizer, step: int, steps: int) -> float:
    """Rate of step `step` (from 1) of `steps`: linear warm-up, then constant, or falling over the second
    half."""
    warm = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    fall = min(1.0, max(0.05, 2.1 - 2 * step / steps)) if config.decay == "linear_second_half" else 1.0
    return config.learning_rate * min(warm, fall)


def save(optimizer: AdamW, folder: Path) -> None:
    """Write the state of every parameter that has one."""
    state = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(state, folder / FILE)


def restore(optimizer: AdamW, folder: Path) -> None:
    """Take the state from a checkpoint's folder."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(folder / FILE).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
