"""The job of admission: a submitted task version becomes ACTIVE or QUARANTINED.

Guarantees: a failure of the platform, ours included, is tried again and is never a verdict.
Does not: judge (`admission`)."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from services.evaluator.admission import Unjudged, judge
from services.evaluator.boxes import Boxes
from services.evaluator.jobs import TERM
from services.evaluator.metrics import Metrics
from services.evaluator.specs import FullSpec, Specs
from services.evaluator.submission import printable
from tiltyard.contracts.messages import ADMIT, DISPATCH
from tiltyard.core.outcome import Outcome
from tiltyard.queue import Publisher
from tiltyard.store import admissions
from tiltyard.store.admissions import ClaimedAdmission, Verdict
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.telemetry.events import event_logger

log = event_logger("evaluator")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionJob:
    """A claimed admission with its task; the spec is None when its rows are gone."""

    claimed: ClaimedAdmission
    spec: FullSpec | None

    @property
    def id(self) -> str:
        return self.claimed.ticket.id


class Admitter:
    """Claims, judges and commits admissions."""

    name = ADMIT

    def __init__(
        self, *, work: AsyncUnitOfWork, boxes: Boxes, publisher: Publisher, metrics: Metrics, holder: str
    ) -> None:
        self._work, self._boxes, self._holder = work, boxes, holder
        self._publisher, self._metrics = publisher, metrics
        self._specs = Specs()

    async def claim(self, limit: int) -> list[AdmissionJob]:
        return await self._work.run(self._claim, limit)

    def _claim(self, session: Session, limit: int) -> list[AdmissionJob]:
        claimed = admissions.claim(session, self._holder, limit, TERM)
        specs = self._specs.load(session, (c.version_id for c in claimed))
        return [AdmissionJob(claimed=c, spec=specs.get(c.version_id)) for c in claimed]

    async def renew(self, jobs: Sequence[AdmissionJob]) -> set[str]:
        return await self._work.run(admissions.renew, [j.claimed.ticket for j in jobs], TERM)

    async def release(self, jobs: Sequence[AdmissionJob]) -> None:
        await self._work.run(admissions.release, [j.claimed.ticket for j in jobs])

    async def do(self, job: AdmissionJob) -> None:
        """Judge and commit."""
        clock = time.perf_counter()
        try:
            verdict = await self._verdict(job)
            self._metrics.admitted(verdict.admitted, time.perf_counter() - clock)
            await self._work.run(admissions.commit, job.claimed.ticket, verdict)
        except Unjudged as error:
            await self._fail(job, str(error), hopeless=error.hopeless)
        except Exception as error:  # our own fault is no verdict: it is tried again
            log.error("admission.crashed", id=job.id, exc_info=True)
            await self._fail(job, f"{type(error).__name__}: {error}")
        self._publisher.announce(DISPATCH)

    async def _verdict(self, job: AdmissionJob) -> Verdict:
        if job.spec is None:
            raise Unjudged(Outcome.GRADER_FAILED, f"task version {job.claimed.version_id} has no verifier")
        if job.claimed.spent:
            raise Unjudged(Outcome.GRADER_FAILED, "it was tried too often; see the log of the evaluator")
        return await judge(job.spec.public, job.spec.hidden, job.claimed.repeats, self._boxes)

    async def _fail(self, job: AdmissionJob, reason: str, *, hopeless: bool = False) -> None:
        text, jitter = printable(reason, 10_000), random.random()
        try:
            await self._work.run(
                admissions.fail, job.claimed.ticket, reason=text, jitter=jitter, hopeless=hopeless
            )
        except Exception:  # the row stays leased, and is claimed anew when its lease runs out
            log.error("admission.uncommitted", id=job.id, exc_info=True)
