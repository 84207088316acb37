"""Documents that the registry's tests send."""

import json
from pathlib import Path
from typing import Any

from sqlalchemy import text

from tiltyard.store.database import UnitOfWork

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
TOKEN = "a-token-that-is-long-enough-for-tests"
BODY_LIMIT = 1_000_000


def example(name: str = "task-add") -> dict[str, Any]:
    """A task spec of the documentation."""
    return json.loads((EXAMPLES / f"{name}.json").read_text())


def submission(name: str = "examples/add", *, tasksets: tuple[str, ...] = ("mine",), **changes: Any) -> Any:
    """A task submission."""
    return {"spec": {**example(), "name": name, **changes}, "tasksets": list(tasksets)}


def activate(work: UnitOfWork, state: str = "ACTIVE") -> None:
    """Give every task version a state, as its admission would."""
    with work() as session:
        session.execute(text("UPDATE task_versions SET state = :state"), {"state": state})


def evaluation(name: str = "eval", **changes: Any) -> dict[str, Any]:
    """An evaluation run's config."""
    return {"kind": "evaluation", "name": name, "taskset": "mine", "policy": "start@latest", **changes}


def training(name: str = "train", **changes: Any) -> dict[str, Any]:
    """A training run's config, from a fresh policy."""
    return {"kind": "train", "name": name, "taskset": "mine", "policy": {"layers": 2}, **changes}
