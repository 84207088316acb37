"""AdamW, its schedule, and its state as safetensors.

Guarantees: a restored optimizer continues exactly where it stood.
Does not: pickle."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.optim import AdamW

from services.trainer.policy import Policy
from tiltyard.contracts.run_config import Optimizer

FILE = "optimizer.safetensors"


def make(policy: Policy, config: Optimizer) -> AdamW:
    return AdamW(
        policy.model.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
    )


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
