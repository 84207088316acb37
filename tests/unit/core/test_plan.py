"""Room: what a run has in flight is bounded whatever happens, and the run can always go on."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tiltyard.core.plan import Progress, TrainPlan, room, room_in_evaluation


class TrainingRun(RuleBasedStateMachine):
    """Groups of one run: planned by `room` alone, settled and trained in any order."""

    plan = TrainPlan(batch=1, steps=1, max_staleness=0)
    open = ready = steps = planned = lost = 0

    @initialize(batch=st.integers(1, 5), steps=st.integers(1, 6), staleness=st.integers(0, 3))
    def begin(self, batch: int, steps: int, staleness: int) -> None:
        self.plan = TrainPlan(batch=batch, steps=steps, max_staleness=staleness)

    @property
    def progress(self) -> Progress:
        return Progress(open=self.open, ready=self.ready, steps_done=self.steps, planned=self.planned)

    @rule()
    def refill(self) -> None:
        added = room(self.plan, self.progress)
        self.open += added
        self.planned += added

    @precondition(lambda self: self.open)
    @rule()
    def become_ready(self) -> None:
        self.open, self.ready = self.open - 1, self.ready + 1

    @precondition(lambda self: self.open)
    @rule()
    def be_filtered(self) -> None:
        self.open, self.lost = self.open - 1, self.lost + 1

    @precondition(lambda self: self.ready)
    @rule()
    def grow_stale(self) -> None:
        self.ready, self.lost = self.ready - 1, self.lost + 1

    @precondition(lambda self: self.ready >= self.plan.batch and self.steps < self.plan.steps)
    @rule()
    def train(self) -> None:
        self.ready, self.steps = self.ready - self.plan.batch, self.steps + 1

    @invariant()
    def the_bound_holds(self) -> None:
        assert self.open + self.ready <= self.plan.batch * (self.plan.max_staleness + 1)

    @invariant()
    def no_group_is_planned_that_no_step_needs(self) -> None:
        assert self.planned - self.lost <= self.plan.steps * self.plan.batch

    @invariant()
    def a_run_that_is_not_done_can_go_on(self) -> None:
        can_train = self.ready >= self.plan.batch
        done = self.steps == self.plan.steps
        assert done or self.open or can_train or room(self.plan, self.progress)

    @invariant()
    def a_refill_leaves_no_room(self) -> None:
        more = room(self.plan, self.progress)
        after = Progress(open=self.open + more, ready=self.ready, steps_done=self.steps, planned=0)
        assert room(self.plan, after) == 0


class EvaluationRun(RuleBasedStateMachine):
    """Groups of an evaluation: each task once, a window at a time."""

    tasks = window = 1
    open = planned = 0

    @initialize(tasks=st.integers(0, 20), window=st.integers(1, 8))
    def begin(self, tasks: int, window: int) -> None:
        self.tasks, self.window = tasks, window

    @rule()
    def refill(self) -> None:
        added = self._room()
        self.open += added
        self.planned += added

    @precondition(lambda self: self.open)
    @rule()
    def settle(self) -> None:
        self.open -= 1

    @invariant()
    def the_window_holds(self) -> None:
        assert self.open <= self.window
        assert self.planned <= self.tasks

    @invariant()
    def a_run_that_is_not_done_can_go_on(self) -> None:
        assert self.planned == self.tasks or self.open or self._room()

    def _room(self) -> int:
        progress = Progress(open=self.open, ready=0, steps_done=0, planned=self.planned)
        return room_in_evaluation(waiting=self.tasks - self.planned, progress=progress, window=self.window)


TrainingRun.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
EvaluationRun.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestTrainingRun = TrainingRun.TestCase
TestEvaluationRun = EvaluationRun.TestCase


def test_groups_under_training_leave_no_room_before_their_version_is_out() -> None:
    plan = TrainPlan(batch=12, steps=40, max_staleness=1)
    waiting = Progress(open=4, ready=8, steps_done=1, planned=24, training=12)
    assert room(plan, waiting) == 0
    published = Progress(open=4, ready=8, steps_done=1, planned=24)
    assert room(plan, published) == 12


def test_the_bound_counts_groups_and_not_rollouts() -> None:
    plan = TrainPlan(batch=16, steps=100, max_staleness=1)

    assert room(plan, Progress(open=0, ready=0, steps_done=0, planned=0)) == 32
    assert room(plan, Progress(open=20, ready=10, steps_done=3, planned=99)) == 2


def test_the_last_steps_plan_only_what_they_need() -> None:
    plan = TrainPlan(batch=4, steps=10, max_staleness=3)

    assert room(plan, Progress(open=1, ready=0, steps_done=9, planned=0)) == 3
    assert room(plan, Progress(open=0, ready=0, steps_done=10, planned=0)) == 0


def test_a_bound_that_was_lowered_never_gives_negative_room() -> None:
    assert (
        room(TrainPlan(batch=1, steps=1, max_staleness=0), Progress(open=9, ready=9, steps_done=5, planned=0))
        == 0
    )
    assert (
        room_in_evaluation(waiting=1, progress=Progress(open=9, ready=0, steps_done=0, planned=9), window=1)
        == 0
    )
