"""The engine over Hugging Face transformers: any causal language model, on CPU or one accelerator.

Guarantees: many requests share forward passes, and none can tell.
Does not: spread a model over devices; vLLM does."""

import os
import tempfile
from pathlib import Path

import torch

from services.rollout.batch import TorchBatch
from services.rollout.checkpoint import fetch
from services.rollout.checkpoint_policy import CheckpointPolicy, load_checkpoint
from services.rollout.engine import Meter
from services.rollout.scheduler import Scheduler
from tiltyard.objects import ObjectStore
from tiltyard.store.policies import PolicyRow

SMALL = 30_000_000
"""Parameters."""


def open_engine(*, max_batch: int, threads: int = 0, meter: Meter | None = None) -> Scheduler:
    """An engine whose policies come from `Checkpoints.load`."""

    def batch(policy: object) -> TorchBatch:
        assert isinstance(policy, CheckpointPolicy), "policies of this engine are checkpoints"
        torch.set_num_threads(threads or _threads_for(policy))
        return TorchBatch(policy)

    return Scheduler(batch, max_batch=max_batch, meter=meter)


def _threads_for(policy: CheckpointPolicy) -> int:
    """One thread for a small model, whose steps are shorter than the threads' meetings; else all cores."""
    small = policy.model.num_parameters() < SMALL
    return 1 if small else len(os.sched_getaffinity(0))


class Checkpoints:
    """Policy versions from the object store."""

    def __init__(self, objects: ObjectStore, *, device: str = "cpu", cache_dir: Path | None = None) -> None:
        self._objects, self._device, self._cache_dir = objects, torch.device(device), cache_dir
        if cache_dir is not None:
            cache_dir.mkdir(parents=True, exist_ok=True)

    def load(self, row: PolicyRow) -> CheckpointPolicy:
        """Fetch, verify and load a version. Blocks; raises `ObjectError`, `CorruptCheckpoint`, or whatever
        transformers says of a folder that is no checkpoint."""
        with tempfile.TemporaryDirectory(prefix="policy-", dir=self._cache_dir) as folder:
            fetch(self._objects, row, Path(folder))
            return load_checkpoint(
                Path(folder), run_id=row.run_id, version=row.version, device=str(self._device)
            )
