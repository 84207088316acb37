"""The job of grading: a produced attempt becomes a scored rollout.

Guarantees: the record is stored before the row points to it; a grading that measured nothing is a failure
with a kind, never a zero; results are committed many at a time.
Does not: measure (`grading`)."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol

from opentelemetry import trace
from sqlalchemy.orm import Session

from services.evaluator.boxes import Boxes
from services.evaluator.grading import Measured, grade
from services.evaluator.jobs import TERM
from services.evaluator.metrics import Metrics
from services.evaluator.specs import FullSpec, Specs
from services.evaluator.submission import printable
from tiltyard.contracts.messages import DISPATCH, GRADE
from tiltyard.contracts.records import AttemptRecord, GradingRecord, ScoreRecord, grading_key, pack, unpack
from tiltyard.core.outcome import Outcome, ruling
from tiltyard.core.retry import backoff
from tiltyard.objects import ObjectError, ObjectStore
from tiltyard.objects.crew import Crew
from tiltyard.queue import Publisher
from tiltyard.store import gradings
from tiltyard.store.batch import UNAVAILABLE, Batch
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.store.gradings import ClaimedGrading, FailedGrading, Graded, ScoreRow, Ticket
from tiltyard.telemetry.events import event_logger
from tiltyard.telemetry.propagation import context_from, trace_id_of

log = event_logger("evaluator")
tracer = trace.get_tracer("tiltyard.evaluator")
LINGER_SECONDS = 0.04
"""How long a result waits for others: a transaction costs more than a grading."""


class Recorder(Protocol):
    """Keeps the finished spans of this process."""

    def take_spans(self, trace_id: str) -> Sequence[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingJob:
    """A claimed grading with its task; the spec is None when its rows are gone."""

    claimed: ClaimedGrading
    spec: FullSpec | None

    @property
    def id(self) -> str:
        return self.claimed.ticket.id


class Unreadable(Exception):
    """The attempt's record is missing or not what its row says."""


class Grader:
    """Claims, grades and commits gradings."""

    name = GRADE

    def __init__(
        self,
        *,
        work: AsyncUnitOfWork,
        objects: ObjectStore,
        boxes: Boxes,
        publisher: Publisher,
        recorder: Recorder,
        metrics: Metrics,
        holder: str,
        crew: Crew,
    ) -> None:
        self._work, self._objects, self._boxes, self._holder = work, objects, boxes, holder
        self._publisher, self._recorder, self._metrics, self._crew = publisher, recorder, metrics, crew
        self._specs = Specs()
        self._commits = Batch(self._commit, linger=LINGER_SECONDS)

    async def claim(self, limit: int) -> list[GradingJob]:
        return await self._work.run(self._claim, limit)

    def _claim(self, session: Session, limit: int) -> list[GradingJob]:
        claimed = gradings.claim(session, self._holder, limit, TERM)
        specs = self._specs.load(session, (c.version_id for c in claimed))
        return [GradingJob(claimed=c, spec=specs.get(c.version_id)) for c in claimed]

    async def renew(self, jobs: Sequence[GradingJob]) -> set[str]:
        return await self._work.run(gradings.renew, [j.claimed.ticket for j in jobs], TERM)

    async def release(self, jobs: Sequence[GradingJob]) -> None:
        await self._work.run(gradings.release, [j.claimed.ticket for j in jobs])

    async def do(self, job: GradingJob) -> None:
        """Grade and commit; a failure of ours is an outcome too."""
        try:
            result = await self._result(job)
        except ObjectError as error:
            result = _failure(job.claimed.ticket, Outcome.ARTIFACT_FAILED, str(error))
        except Exception as error:  # a grader's fault is recorded, and retried within its budget
            log.error("grading.crashed", id=job.id, exc_info=True)
            result = _failure(job.claimed.ticket, Outcome.GRADER_FAILED, f"{type(error).__name__}: {error}")
        await self._settle(result)

    async def _result(self, job: GradingJob) -> Graded | FailedGrading:
        claimed = job.claimed
        if claimed.spent:
            reason = "its graders were lost, or failed, more often than its run allows"
            return _failure(claimed.ticket, Outcome.GRADER_FAILED, reason)
        if job.spec is None:
            reason = f"task version {claimed.version_id} has no verifier"
            return _failure(claimed.ticket, Outcome.GRADER_FAILED, reason)
        started, clock = datetime.now(UTC), time.perf_counter()
        measured = await self._traced(claimed, job.spec)
        self._metrics.graded(measured.outcome, time.perf_counter() - clock)
        spec = job.spec
        key = await self._crew.do(lambda: self._keep(claimed, spec, measured, started))
        return _row(claimed.ticket, spec.verifier, measured, key)

    async def _traced(self, claimed: ClaimedGrading, spec: FullSpec) -> Measured:
        """Grade under a span of the attempt's trace."""
        labels = {"rollout_id": claimed.ticket.key.rollout_id, "number": claimed.ticket.number}
        with tracer.start_as_current_span(
            "grade", context=context_from(claimed.traceparent), attributes=labels
        ) as span:
            measured = await self._measured(claimed, spec)
            span.set_attribute("outcome", str(measured.outcome))
            if measured.reward is not None:
                span.set_attribute("reward", measured.reward)
            else:
                span.set_status(trace.StatusCode.ERROR, measured.reason[:200])
        return measured

    async def _measured(self, claimed: ClaimedGrading, spec: FullSpec) -> Measured:
        try:
            text = await self._crew.do(lambda: self._answer(claimed))
        except (Unreadable, ObjectError) as error:
            return Measured(outcome=Outcome.ARTIFACT_FAILED, reason=str(error), reward=None, scores=())
        return await grade(spec.public, spec.hidden.verifier, text, self._boxes)

    def _answer(self, claimed: ClaimedGrading) -> str:
        data = self._objects.get(claimed.artifact)
        if sha256(data).hexdigest() != claimed.sha256:
            raise Unreadable(f"{claimed.artifact} has another SHA-256 than its row: {claimed.sha256}")
        try:
            record = unpack(AttemptRecord, data, what=claimed.artifact)
        except ValueError as error:
            raise Unreadable(str(error)) from error
        if record.answer is None:
            raise Unreadable(f"{claimed.artifact} holds no answer")
        return record.answer

    def _keep(self, claimed: ClaimedGrading, spec: FullSpec, measured: Measured, started: datetime) -> str:
        """Store the GradingRecord; its key."""
        ticket = claimed.ticket
        spans = self._recorder.take_spans(trace_id_of(claimed.traceparent) or "")
        record = GradingRecord(
            rollout_id=ticket.key.rollout_id,
            fence=ticket.key.fence,
            number=ticket.number,
            verifier=spec.verifier,
            outcome=measured.outcome,
            reason=measured.reason,
            reward=measured.reward,
            scores=measured.scores,
            started_at=started,
            ended_at=datetime.now(UTC),
            spans=tuple(dict(s) for s in spans),
        )
        key = grading_key(claimed.run_id, ticket.key.rollout_id, ticket.key.fence, ticket.number)
        self._objects.put(key, pack(record))
        return key

    async def _settle(self, result: Graded | FailedGrading) -> None:
        """Commit, trying again while the database is away and the lease may still hold."""
        given_up = time.monotonic() + TERM.total_seconds()
        failures = 0
        while True:
            try:
                await self._commits.submit(result)
                return
            except UNAVAILABLE as error:
                failures += 1
                if time.monotonic() > given_up:
                    log.error("grading.uncommitted", id=result.ticket.id, error=str(error))
                    return
                await asyncio.sleep(backoff(failures, jitter=random.random()).total_seconds())
            except Exception:  # the row stays leased, and is claimed anew when its lease runs out
                log.error("grading.uncommitted", id=result.ticket.id, exc_info=True)
                return

    async def _commit(self, results: Sequence[Graded | FailedGrading]) -> Sequence[None]:
        await self._work.run(_commit, results)
        self._publisher.announce(DISPATCH)
        return [None] * len(results)


def _commit(session: Session, results: Sequence[Graded | FailedGrading]) -> None:
    graded = [r for r in results if isinstance(r, Graded)]
    failed = [r for r in results if isinstance(r, FailedGrading)]
    if graded:
        gradings.commit(session, graded)
    if failed:
        gradings.fail(session, failed)


def _failure(ticket: Ticket, outcome: Outcome, reason: str) -> FailedGrading:
    text = printable(reason, 2_000)
    return FailedGrading(ticket=ticket, outcome=outcome, reason=text, jitter=random.random())


def _row(ticket: Ticket, verifier: str, measured: Measured, key: str) -> Graded | FailedGrading:
    if measured.reward is None or not ruling(measured.outcome).valid:
        return FailedGrading(
            ticket=ticket,
            outcome=measured.outcome,
            reason=measured.reason,
            jitter=random.random(),
            verifier=verifier,
            artifact=key,
        )
    return Graded(
        ticket=ticket,
        verifier=verifier,
        outcome=measured.outcome,
        reward=measured.reward,
        artifact=key,
        scores=tuple(map(_score_row, measured.scores)),
        reason=measured.reason,
    )


def _score_row(score: ScoreRecord) -> ScoreRow:
    return ScoreRow(
        component=score.component,
        value=score.value,
        weight=score.weight,
        gate=score.gate,
        tier=score.tier,
        outcome=score.outcome,
    )
