"""What an evaluation run measured: the mean reward over tasks, with an interval.

Guarantees: the interval is a percentile bootstrap over tasks (Efron 1979), the same for the same rewards;
rollouts without a valid reward count neither for nor against.
Does not: compare two policies; their intervals stand side by side."""

import random
from collections.abc import Sequence

from tiltyard.contracts.http import EvaluationView, TaskScore

DRAWS = 1_000
SEED = 20_261
LOW, HIGH = 0.025, 0.975


def interval(means: Sequence[float], *, draws: int = DRAWS, seed: int = SEED) -> tuple[float, float]:
    """95 % percentile interval of the mean of `means`, by resampling them; raises ValueError for none."""
    if not means:
        raise ValueError("an interval needs at least one task")
    dice, n = random.Random(seed), len(means)
    drawn = sorted(sum(dice.choices(means, k=n)) / n for _ in range(draws))
    return drawn[int(LOW * draws)], drawn[min(draws - 1, int(HIGH * draws))]


def view(run_id: str, policy: str, rollouts: int, scores: tuple[TaskScore, ...]) -> EvaluationView:
    """The evaluation of `policy`, from each task's valid rewards."""
    means = [s.mean for s in scores]
    low, high = interval(means) if means else (None, None)
    return EvaluationView(
        run_id=run_id,
        policy=policy,
        tasks=len(scores),
        rollouts=rollouts,
        valid=sum(s.valid for s in scores),
        mean=sum(means) / len(means) if means else None,
        low=low,
        high=high,
        scores=scores,
    )
