"""Policy versions in the object store: stored whole before their row, restored with their hashes checked.

Guarantees: a version's folder is never written twice: its prefix holds the fence that wrote it; equal weights
have equal hashes.
Does not: decide which version is the newest (`store.policies`)."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from services.trainer import optimizer as adamw
from services.trainer.policy import Policy, load
from tiltyard.contracts.records import policy_prefix
from tiltyard.objects import ObjectStore
from tiltyard.objects.folder import download, upload
from tiltyard.store.policies import PolicyRow
from tiltyard.store.training import Published

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Where versions are stored, and where they are unpacked."""

    objects: ObjectStore
    cache: Path
    device: str

    def store(
        self, run_id: str, version: int, fence: int, policy: Policy, state: adamw.AdamW | None
    ) -> Published:
        """Upload a version, with the optimizer's state where one is given; what its row will say."""
        with tempfile.TemporaryDirectory(prefix="tiltyard-policy-") as scratch:
            folder = Path(scratch)
            policy.save(folder)
            if state is not None:
                adamw.save(state, folder)
            prefix = f"{policy_prefix(run_id, version)}{fence}/"
            files = upload(self.objects, prefix, folder)
        return Published(version=version, prefix=prefix, files=files, checkpoint=state is not None)

    def load(self, row: PolicyRow) -> Policy:
        """A stored version's policy."""
        return load(self.folder(row), self.device)

    def folder(self, row: PolicyRow) -> Path:
        """A stored version's files, on this machine."""
        name = f"{row.run_id}-{row.version}-{row.files.get(WEIGHTS, '')[:16]}-{int(row.checkpoint)}"
        return download(self.objects, row.prefix, row.files, self.cache / "checkpoints" / name)
