"""What the scores of one grading add up to.

Guarantees: a failed gate gives reward 0 whatever else was scored; a later tier counts only when every earlier
tier is full; a component that abstained is left out of the weights, and an abstaining gate makes the grading
unusable.
Does not: decide validity beyond that; `core.outcome` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One named component of a reward."""

    component: str
    value: float | None
    """In [0, 1]; None when the component abstained."""
    weight: float = 1.0
    gate: bool = False
    tier: int = 0
    detail: str = ""


class NoReward(ValueError):
    """The scores do not make a reward: a gate abstained, or nothing was scored."""


def reward(scores: Sequence[Score]) -> float:
    """The reward in [0, 1]: the weighted mean of the scores that count, exactly 1 for full marks.

    Raises `NoReward` when a gate abstained or no weighted component gave a value."""
    for score in scores:
        if score.value is not None and not 0.0 <= score.value <= 1.0:
            raise NoReward(f"component {score.component!r} scored {score.value}, outside [0, 1]")
        if score.gate and score.value is None:
            raise NoReward(f"gate {score.component!r} abstained")
    given = [s for s in scores if s.value is not None and s.weight > 0]
    if not given:
        raise NoReward("no component gave a score")
    if any(s.gate and s.value is not None and s.value < 1.0 for s in scores):
        return 0.0
    total = fsum(s.weight for s in given)
    return fsum(s.weight * s.value for s in _counting(given) if s.value is not None) / total


def _counting(given: Sequence[Score]) -> list[Score]:
    """Scores of the first tiers up to and including the first one that is not full."""
    counted: list[Score] = []
    for tier in sorted({s.tier for s in given}):
        members = [s for s in given if s.tier == tier]
        counted += members
        if any(s.value is not None and s.value < 1.0 for s in members):
            break
    return counted
