"""Examples of request bodies: the files of `docs/examples` that people read, so that both are one."""

import json
import tomllib
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
"""In a checkout; an installed wheel does without."""


def examples_of(operation: str) -> dict[str, Any]:
    """Examples of the body of the operation with this id, by name."""
    if operation.startswith("submit_v1"):
        return {
            name: {"value": {"spec": example["value"], "tasksets": ["mine"], "repeats": 3}}
            for name, example in _load("task-*.json").items()
        }
    if operation.startswith("start"):
        return _load("run-*.toml")
    return {}


def _load(pattern: str) -> dict[str, Any]:
    return {
        path.stem: {
            "value": tomllib.loads(path.read_text())
            if path.suffix == ".toml"
            else json.loads(path.read_text())
        }
        for path in sorted(EXAMPLES.glob(pattern))
    }
