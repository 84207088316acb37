"""The reward plot.

Guarantees: a PNG that shows reward, the share of groups with gradient, and the held-out pass rates."""

from collections.abc import Sequence
from pathlib import Path

from tiltyard.contracts.http import EvaluationView, StepView

WINDOW = 5
"""Steps in the moving mean."""


def draw(
    path: Path, steps: Sequence[StepView], before: EvaluationView, after: EvaluationView, *, title: str
) -> None:
    """Write the plot of a training run to `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.2), gridspec_kw={"width_ratios": [3, 1]}, layout="constrained"
    )
    numbers = [s.step for s in steps]
    rewards = [s.metrics.get("reward", float("nan")) for s in steps]
    left.plot(numbers, rewards, color="#b8c4d6", linewidth=1, label="reward of the step")
    left.plot(numbers, _moving_mean(rewards), color="#1f4e9c", linewidth=2, label=f"mean of {WINDOW} steps")
    left.set(xlabel="training step", ylabel="reward", ylim=(0, 1), title=title)
    left.legend(frameon=False)
    names, views = ("before RL", "after RL"), (before, after)
    means = [v.mean or 0.0 for v in views]
    low = [m - (v.low or 0.0) for m, v in zip(means, views, strict=True)]
    high = [(v.high or 0.0) - m for m, v in zip(means, views, strict=True)]
    right.bar(names, means, yerr=[low, high], color=["#b8c4d6", "#1f4e9c"], capsize=5)
    right.set(ylim=(0, 1), title="held-out pass rate (95 %)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _moving_mean(values: Sequence[float]) -> list[float]:
    means: list[float] = []
    for end in range(1, len(values) + 1):
        window = values[max(0, end - WINDOW) : end]
        means.append(sum(window) / len(window))
    return means
