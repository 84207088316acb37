"""Policies of a few thousand weights."""

import pytest
import torch

from services.trainer.policy import Policy, fresh
from tiltyard.contracts.run_config import FreshPolicy

TINY = FreshPolicy(hidden_size=32, layers=2, heads=2, max_positions=64)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Sums in one order, and no fight over cores."""
    torch.set_num_threads(1)


@pytest.fixture
def policy() -> Policy:
    """A fresh byte-level policy, the same for every test."""
    return fresh(TINY, seed=0, device="cpu")
