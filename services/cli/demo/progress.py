"""The demo's live display, on stderr.

Guarantees: one line a stage when nobody watches (no terminal), a live table when somebody does.
Does not: decide what is shown; the story tells it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from tiltyard.contracts.http import RunStats


@dataclass(kw_only=True)
class Display:
    """Stages with a bar each, and a line of figures below."""

    console: Console
    bars: Progress = field(init=False)
    figures: Text = field(default_factory=Text, init=False)
    started: float = field(default_factory=monotonic, init=False)

    def __post_init__(self) -> None:
        self.bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )

    @contextmanager
    def live(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with Live(self, console=self.console, refresh_per_second=4):
            yield

    def __rich__(self) -> Group:
        return Group(self.bars, self.figures)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator["Stage"]:
        """A stage that fills from 0 to `total`."""
        bar = self.bars.add_task(name, total=total)
        stage = Stage(display=self, bar=bar, total=total, name=name)
        self.say(f"{name} …")
        yield stage
        stage.at(total)
        self.say(f"{name}: done")

    def show(self, stats: RunStats, *, reward: float | None) -> None:
        """Figures of a run under way."""
        parts = {
            "rollouts/s": _number(stats.rollouts_per_second, "{:.0f}"),
            "reward": _number(reward, "{:.2f}"),
            "valid": _number(stats.valid_share, "{:.1%}"),
            "filtered": _number(stats.filter_rate, "{:.0%}"),
            "policy": "–" if stats.policy_version is None else f"v{stats.policy_version}",
        }
        self.figures = Text("   ".join(f"{k} {v}" for k, v in parts.items()), style="cyan")

    def say(self, line: str) -> None:
        if not self.console.is_terminal:
            self.console.print(f"[{monotonic() - self.started:6.1f} s] {line}", highlight=False)


@dataclass(kw_only=True)
class Stage:
    """One bar."""

    display: Display
    bar: object
    total: int
    name: str
    said: int = 0

    def at(self, done: int) -> None:
        self.display.bars.update(self.bar, completed=done)  # type: ignore[arg-type]
        tenth = done * 10 // max(self.total, 1)
        if 0 < tenth < 10 and tenth > self.said:
            self.said = tenth
            figures = f"   {self.display.figures.plain}" if self.display.figures.plain else ""
            self.display.say(f"{self.name}: {done}/{self.total}{figures}")


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
