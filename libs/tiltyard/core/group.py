"""When a group is settled, and what its members' advantages are.

Guarantees: a member without a valid reward is absent from mean, spread and count; this module alone computes
an advantage.
Does not: wait for stragglers beyond the group's deadline."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tiltyard.core.rollout import IN_FLIGHT, State


class Verdict(StrEnum):
    """What becomes of a group."""

    WAIT = "WAIT"
    """Members are still on their way."""
    READY = "READY"
    """It carries gradient and goes to the trainer."""
    FILTERED = "FILTERED"
    """Too few valid members, or no spread among their rewards."""
    STALE = "STALE"
    """Its oldest tokens come from a policy version that is too old."""
    EVALUATED = "EVALUATED"
    """A group of an evaluation run: counted, not trained on."""


class Estimator(StrEnum):
    """How rewards become advantages."""

    DR_GRPO = "dr_grpo"
    """R − mean (arXiv 2503.20783)."""
    GRPO = "grpo"
    """(R − mean) / (s + ε), s the unbiased standard deviation (arXiv 2402.03300)."""
    RLOO = "rloo"
    """(R − mean) · n/(n−1), the leave-one-out baseline (arXiv 2402.14740)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rollout of a group, as far as settling needs it."""

    state: State
    reward: float | None = None
    """None unless the rollout is SCORED with a valid grading."""
    oldest_version: int | None = None
    """The oldest policy version among its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """When a group of one run may settle."""

    trains: bool
    """False for evaluation runs."""
    min_valid: int = 2
    max_staleness: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A decision about one group, with its reason."""

    verdict: Verdict
    reason: str


VOTING = frozenset({State.SCORED, State.READY})
"""READY ones vote again when their group is looked at anew, since a member of it was withdrawn."""
GRPO_EPSILON = 1e-4
"""Added to the standard deviation, as TRL 1.16 does."""


def settle(
    members: Sequence[Member], rules: GroupRules, *, version: int, deadline: datetime | None, now: datetime
) -> Settlement:
    """Decide about one group while the run's newest policy version is `version`.

    `deadline` is None before its first grant: time in the queue does not count."""
    waiting = sum(m.state in IN_FLIGHT for m in members)
    if waiting and (deadline is None or now < deadline):
        return Settlement(verdict=Verdict.WAIT, reason=f"{waiting} members on their way")
    if not rules.trains:
        return Settlement(verdict=Verdict.EVALUATED, reason="every member has ended")
    voters = [m for m in members if m.state in VOTING and m.reward is not None]
    rewards = [m.reward for m in voters if m.reward is not None]
    if len(rewards) < max(2, rules.min_valid):
        return Settlement(verdict=Verdict.FILTERED, reason="too_few_valid")
    if max(rewards) == min(rewards):
        return Settlement(verdict=Verdict.FILTERED, reason="all_failed" if rewards[0] == 0 else "zero_spread")
    if is_stale([m.oldest_version for m in voters], version=version, max_staleness=rules.max_staleness):
        return Settlement(verdict=Verdict.STALE, reason="oldest tokens are too old")
    return Settlement(verdict=Verdict.READY, reason="carries gradient")


def is_stale(versions: Sequence[int | None], *, version: int, max_staleness: int) -> bool:
    """Whether tokens of `versions` are more than `max_staleness` updates behind `version`."""
    known = [v for v in versions if v is not None]
    return bool(known) and version - min(known) > max_staleness


def advantages(rewards: Sequence[float | None], estimator: Estimator) -> list[float | None]:
    """One advantage a member, None where the reward is None; formulas under `Estimator`.

    Raises ValueError when fewer than two members are valid: a lone reward has no baseline."""
    valid = [r for r in rewards if r is not None]
    n = len(valid)
    if n < 2:
        raise ValueError(f"an advantage needs at least 2 valid rewards, not {n}")
    mean = sum(valid) / n
    scale = _scale(valid, mean, estimator)
    return [None if r is None else (r - mean) * scale for r in rewards]


def _scale(valid: Sequence[float], mean: float, estimator: Estimator) -> float:
    n = len(valid)
    if estimator is Estimator.RLOO:
        return n / (n - 1)
    if estimator is Estimator.GRPO:
        spread = (sum((r - mean) ** 2 for r in valid) / (n - 1)) ** 0.5
        return 1.0 / (spread + GRPO_EPSILON)
    return 1.0
