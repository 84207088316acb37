"""The demo, act by act, over the HTTP API alone.

Guarantees: what an author, an RL engineer and an SRE would do, in that order, and everything it claims is
read back from the API.
Does not: start or stop services (`services.cli.stack`) or judge the result (`services.cli.demo.result`)."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from services.cli.demo.progress import Display, Stage
from services.cli.demo.recipe import Recipe
from services.cli.demo.submissions import submissions, warm_start_lines
from services.cli.demo.tasks import Split
from services.cli.humaneval import tasks as humaneval
from tiltyard.client import Client
from tiltyard.contracts.http import (
    EvaluationView,
    LedgerView,
    RunView,
    StepView,
    TasksetView,
    TaskSubmission,
)

HUMANEVAL, TRAIN, HELDOUT = "humaneval", "demo-train", "demo-heldout"
POLL = 0.5
BATCH = 100
COUNTS = ("oracle_passes", "oracle_failures", "noop_passes", "noop_failures")


class RunFailed(RuntimeError):
    """A run of the demo ended otherwise than COMPLETED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the demo came to."""

    tasksets: dict[str, TasksetView]
    admissions: dict[str, dict[str, int]]
    """Taskset → oracle and no-op passes and failures, summed over its tasks."""
    before: EvaluationView
    after: EvaluationView
    steps: tuple[StepView, ...]
    runs: tuple[RunView, ...]
    ledgers: tuple[LedgerView, ...]


@dataclass(kw_only=True)
class Story:
    """One telling."""

    client: Client
    display: Display
    recipe: Recipe
    seed: int
    steps: int

    def tell(self) -> Told:
        """All acts; raises `RunFailed`, or `ApiError` when the API refuses."""
        with ThreadPoolExecutor(1) as pool:
            warm = pool.submit(self._warm_start)
            self._submit()
            self._admit(warm)
            warm_start = warm.result()
        before = self._evaluate("before", f"{warm_start.name}@latest")
        training = self._train(warm_start)
        after = self._evaluate("after", f"{training.name}@latest")
        return self._read_back(warm_start, training, before, after)

    def _submit(self) -> None:
        batches: Sequence[tuple[str, Callable[[], list[TaskSubmission]]]] = (
            ("HumanEval", self._humaneval),
            ("generated tasks", self._generated),
        )
        for name, make in batches:
            rows = make()
            with self.display.stage(f"submit {name}", len(rows)) as stage:
                for start in range(0, len(rows), BATCH):
                    self.client.submit_tasks(rows[start : start + BATCH])
                    stage.at(start + BATCH)

    def _humaneval(self) -> list[TaskSubmission]:
        return [
            TaskSubmission(spec=spec, tasksets=(HUMANEVAL,), repeats=self.recipe.admission_repeats)
            for spec in humaneval()
        ]

    def _generated(self) -> list[TaskSubmission]:
        repeats = self.recipe.admission_repeats
        train = submissions(self.seed, Split.TRAIN, self.recipe.train_tasks, taskset=TRAIN, repeats=repeats)
        return train + submissions(
            self.seed, Split.HELDOUT, self.recipe.heldout_tasks, taskset=HELDOUT, repeats=repeats
        )

    def _admit(self, warm_start: "Future[RunView]") -> None:
        names = (HUMANEVAL, TRAIN, HELDOUT)
        total = sum(self.client.taskset(n).tasks for n in names)
        with self.display.stage("admit: oracle passes, no-op fails", total) as stage:
            while True:
                views = [self.client.taskset(n) for n in names]
                stage.at(total - sum(v.submitted for v in views))
                if not any(v.submitted for v in views):
                    return
                if warm_start.done():
                    warm_start.result()
                time.sleep(POLL)

    def _warm_start(self) -> RunView:
        dataset = self.client.upload_artifact(warm_start_lines(self.seed, self.recipe.warm_start_examples))
        run = self.client.start_run(self.recipe.warm_start(seed=self.seed, dataset=dataset.digest))
        return self._finished(run, lambda: None)

    def _evaluate(self, which: str, policy: str) -> EvaluationView:
        run = self.client.start_run(
            self.recipe.evaluation(seed=self.seed, name=which, policy=policy, taskset=HELDOUT)
        )
        total = self.recipe.heldout_tasks * self.recipe.heldout_samples
        with self.display.stage(f"held-out pass rate {which} RL", total) as stage:
            self._finished(run, lambda: self._count(stage, run))
        return self.client.evaluation(run.id)

    def _count(self, stage: Stage, run: RunView) -> None:
        stats = self.client.stats(run.id)
        stage.at(stats.rollouts.get("EVALUATED", 0) + stats.rollouts.get("SCORED", 0))

    def _train(self, warm_start: RunView) -> RunView:
        config = self.recipe.training(
            seed=self.seed, policy=f"{warm_start.name}@latest", taskset=TRAIN, steps=self.steps
        )
        run = self.client.start_run(config)
        with self.display.stage("reinforcement learning", self.steps) as stage:
            return self._finished(run, lambda: self._follow(stage, run))

    def _follow(self, stage: Stage, run: RunView) -> None:
        steps = list(self.client.steps(run.id))
        rewards = [s.metrics["reward"] for s in steps if "reward" in s.metrics]
        self.display.show(self.client.stats(run.id), reward=rewards[-1] if rewards else None)
        stage.at(sum(s.state == "COMMITTED" for s in steps))

    def _finished(self, run: RunView, meanwhile: Callable[[], None]) -> RunView:
        while True:
            view = self.client.run(run.id)
            if view.state == "COMPLETED":
                return view
            if view.state in ("FAILED", "CANCELLED"):
                raise RunFailed(f"run {view.name} ended {view.state}: {view.reason or 'no reason given'}")
            meanwhile()
            time.sleep(POLL)

    def _read_back(
        self, warm_start: RunView, training: RunView, before: EvaluationView, after: EvaluationView
    ) -> Told:
        runs = (warm_start, training, self.client.run(before.run_id), self.client.run(after.run_id))
        return Told(
            tasksets={n: self.client.taskset(n) for n in (HUMANEVAL, TRAIN, HELDOUT)},
            admissions={n: self._admissions(n) for n in (HUMANEVAL, TRAIN, HELDOUT)},
            before=before,
            after=after,
            steps=tuple(self.client.steps(training.id)),
            runs=runs,
            ledgers=tuple(self.client.ledger(r.id) for r in runs),
        )

    def _admissions(self, taskset: str) -> dict[str, int]:
        counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        for task in self.client.tasks(taskset=taskset):
            for key in COUNTS if task.admission else ():
                counts[key] += getattr(task.admission, key)
        return counts
