"""A run of kind `train`: version 0, then a step and a version at a time.

Guarantees: a step is recorded before it is computed and committed after its weights are stored; a killed
trainer's successor restores the last full checkpoint, computes the recorded steps again, and goes on.
Does not: reuse a version's number: where a step computed again gives other weights than were published, later
versions are withdrawn and the integers continue upward."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast

from opentelemetry import trace

from services.trainer import optimizer as adamw
from services.trainer.checkpoint import WEIGHTS, Checkpoints
from services.trainer.harvest import Harvest, harvest
from services.trainer.held import Held
from services.trainer.policy import Policy
from services.trainer.sft import starting_policy
from services.trainer.step import Learner, train_step
from tiltyard.contracts.messages import DISPATCH, POLICY
from tiltyard.contracts.records import Span, StepManifest, pack, step_key
from tiltyard.contracts.run_config import TrainRun
from tiltyard.queue import Publisher
from tiltyard.store import policies, training
from tiltyard.store.database import UnitOfWork
from tiltyard.store.policies import PolicyRow
from tiltyard.store.runs import RunRow
from tiltyard.store.training import Published, Step
from tiltyard.telemetry.events import event_logger
from tiltyard.telemetry.propagation import inject, link_to
from tiltyard.telemetry.span import SpanRecord

log = event_logger("trainer")
tracer = trace.get_tracer("tiltyard.trainer")
WAIT_SECONDS = 0.1
MOST_LINKS = 128
"""Links of a step's span to the attempts that it trained on."""


@dataclass(kw_only=True)
class Training:
    """One held training run."""

    work: UnitOfWork
    checkpoints: Checkpoints
    publisher: Publisher
    take_spans: Callable[[str], list[SpanRecord]]
    """Finished spans of a trace."""
    run: RunRow
    config: TrainRun
    held: Held
    learner: Learner = field(init=False)
    done: int = field(default=0, init=False)
    """Steps whose result the learner holds."""
    version: int = field(default=0, init=False)
    """The published version that the learner's weights are."""

    def go(self) -> None:
        """Train until every step is committed, then complete the run."""
        self._restore()
        while self.done < self.config.steps:
            self.held.check()
            step = self._recorded() or self._begin()
            if step is None:
                self.held.wait(WAIT_SECONDS)
            else:
                self._compute(step)
        with self.work() as session:
            training.complete(session, self.run.id, self.held.fence)

    def _restore(self) -> None:
        with self.work() as session:
            newest = policies.latest(session, self.run.id)
            base = policies.latest_checkpoint(session, self.run.id)
        if newest is None or base is None:
            self._start()
            return
        policy = self.checkpoints.load(base)
        self.learner = self._learner(policy)
        adamw.restore(self.learner.optimizer, self.checkpoints.folder(base))
        self.done, self.version = base.step or 0, base.version
        self._replay(base, newest)

    def _start(self) -> None:
        """Publish version 0, with a fresh optimizer's state."""
        self.learner = self._learner(starting_policy(self.work, self.checkpoints, self.run, self.config.seed))
        self._publish(0, step=None)

    def _learner(self, policy: Policy) -> Learner:
        reference = None
        if self.config.loss.kl_beta:
            reference = starting_policy(self.work, self.checkpoints, self.run, self.config.seed)
            reference.model.requires_grad_(False)
        return Learner(
            policy=policy, optimizer=adamw.make(policy, self.config.optimizer), reference=reference
        )

    def _replay(self, base: PolicyRow, newest: PolicyRow) -> None:
        """Compute the committed steps after the checkpoint again."""
        with self.work() as session:
            later = training.steps(session, self.run.id, after=self.done)
        for step in [s for s in later if s.state == "COMMITTED"]:
            self.held.check()
            gathered = harvest(self.checkpoints.objects, step, self.config, version=self.version)
            train_step(self.learner, gathered.samples, self.config, step.number)
            self.done, self.version = step.number, step.policy_version or self.version
        if newest.version == base.version:
            return
        with self.work() as session:
            version = policies.next_version(session, self.run.id)
        again = self.checkpoints.store(
            self.run.id, version, self.held.fence, self.learner.policy, self.learner.optimizer
        )
        if again.files[WEIGHTS] == newest.files[WEIGHTS]:
            self.version = newest.version
            return
        log.warning("trainer.replay_differs", run_id=self.run.id, step=self.done, version=version)
        with self.work() as session:
            policies.withdraw_after(session, self.run.id, base.version)
            training.publish(session, self.run.id, self.held.fence, again, step=self.done)
        self.version = version

    def _recorded(self) -> Step | None:
        """A step that was begun and not committed."""
        with self.work() as session:
            return next(
                (s for s in training.steps(session, self.run.id, after=self.done) if s.state == "STARTED"),
                None,
            )

    def _begin(self) -> Step | None:
        with tracer.start_as_current_span("train.begin"), self.work() as session:
            number = training.begin_step(
                session,
                self.run.id,
                self.held.fence,
                groups=self.config.groups_per_step,
                traceparent=inject(),
                oldest_allowed=self.version - self.config.max_staleness,
            )
            if number is None:
                return None
            return training.steps(session, self.run.id, after=number - 1)[0]

    def _compute(self, step: Step) -> None:
        started = perf_counter()
        gathered = harvest(self.checkpoints.objects, step, self.config, version=self.version)
        links = [link for parent in gathered.traceparents[:MOST_LINKS] for link in link_to(parent)]
        attributes = {"tiltyard.run.id": self.run.id, "tiltyard.step": step.number}
        with tracer.start_as_current_span("train", links=links, attributes=attributes) as span:
            metrics = train_step(self.learner, gathered.samples, self.config, step.number)
            trace_id = f"{span.get_span_context().trace_id:032x}"
        self.held.check()
        metrics |= {
            "reward": sum(gathered.rewards) / max(len(gathered.rewards), 1),
            "seconds": perf_counter() - started,
        }
        self._commit(step, gathered, metrics, trace_id)

    def _commit(self, step: Step, gathered: Harvest, metrics: dict[str, float], trace_id: str) -> None:
        with self.work() as session:
            version = policies.next_version(session, self.run.id)
        published = self._store(version, full=self._is_checkpoint(step.number))
        manifest = StepManifest(
            run_id=self.run.id,
            step=step.number,
            version=version,
            groups=gathered.groups,
            metrics=metrics,
            spans=tuple(cast(Span, s) for s in self.take_spans(trace_id)),
        )
        key = step_key(self.run.id, step.number, self.held.fence)
        self.checkpoints.objects.put(key, pack(manifest))
        with self.work() as session:
            training.commit_step(
                session,
                self.run.id,
                self.held.fence,
                step.number,
                published=published,
                manifest=key,
                metrics=metrics,
            )
        self.done, self.version = step.number, version
        self.publisher.announce(POLICY, DISPATCH)
        log.info("trainer.step", run_id=self.run.id, step=step.number, version=version, **_rounded(metrics))

    def _is_checkpoint(self, step: int) -> bool:
        return step % self.config.checkpoint_every == 0 or step == self.config.steps

    def _store(self, version: int, *, full: bool) -> Published:
        return self.checkpoints.store(
            self.run.id,
            version,
            self.held.fence,
            self.learner.policy,
            self.learner.optimizer if full else None,
        )

    def _publish(self, version: int, *, step: int | None) -> None:
        published = self._store(version, full=True)
        with self.work() as session:
            training.publish(session, self.run.id, self.held.fence, published, step=step)
        self.version = version
        self.publisher.announce(POLICY, DISPATCH)


def _rounded(metrics: dict[str, float]) -> dict[str, float]:
    return {k: round(v, 4) for k, v in metrics.items()}
