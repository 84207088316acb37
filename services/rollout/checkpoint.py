"""Fetching the files of a policy version.

Guarantees: every file that lands has the SHA-256 that the version's row states.
Does not: fetch what generating needs not, such as the optimizer's state."""

from fnmatch import fnmatch
from pathlib import Path

from tiltyard.objects import ObjectStore
from tiltyard.store.policies import PolicyRow

NEEDED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)


class CorruptCheckpoint(Exception):
    """A file of a policy version is not what its row says."""


def fetch(objects: ObjectStore, row: PolicyRow, folder: Path) -> None:
    """Bring the files that generating needs into `folder`. Raises `ObjectError` or `CorruptCheckpoint`."""
    for name, digest in sorted(row.files.items()):
        if not any(fnmatch(name, pattern) for pattern in NEEDED) or "/" in name:
            continue
        found = objects.get_to(f"{row.prefix.rstrip('/')}/{name}", folder / name).sha256
        if found != digest.removeprefix("sha256:"):
            raise CorruptCheckpoint(
                f"{row.prefix}{name} has sha256 {found[:12]}…, but version {row.version} of run {row.run_id}"
                f" was published with {digest[:12]}…"
            )
