"""Queue messages: hints that mean "look at your rows".

Guarantees: ids only, never objects; a message lost, doubled or late changes nothing but latency.
Does not: carry work; the rows do."""

from typing import Literal

from pydantic import Field

from tiltyard.contracts.document import Document

GRADE = "grade"
"""Topic and job kind: gradings wait to be claimed."""
ADMIT = "admit"
"""Topic and job kind: admissions wait to be claimed."""
DISPATCH = "dispatch"
"""Topic: rows changed that the dispatcher's loop looks at."""
POLICY = "policy"
"""Topic: a policy version was published."""
TRAIN = "train"
"""Topic: groups became READY, or a run for trainers was created."""


def runner_topic(incarnation: str) -> str:
    """Topic of one runner incarnation: grants wait for it, or a rollout aboard is to stop."""
    return f"runner.{incarnation}"


class JobBatch(Document):
    """A batch of rows of one kind of job."""

    schema_version: Literal[1] = 1
    kind: Literal["grade", "admit"]
    ids: tuple[str, ...] = Field(max_length=256)
    """Ids of gradings or admissions; the worker claims these and whatever else waits."""
