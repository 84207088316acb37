"""One attempt: play the episode, keep its record, commit how it ended.

Guarantees: the record lies in the object store before the row that points to it; every commit shows its
fence, and a fenced-off attempt leaves nothing but an object that no row names.
Does not: survive cancellation: whoever cancels answers for the row."""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from opentelemetry import trace

from services.runner.commits import Commits
from services.runner.episode import Episode, Script, play
from services.runner.metrics import Metrics
from services.runner.policy import Policy
from tiltyard.contracts.document import InvalidDocument, parse
from tiltyard.contracts.records import AttemptRecord, Span, attempt_key, pack
from tiltyard.contracts.run_config import Sampling
from tiltyard.contracts.task_spec import PublicSpec
from tiltyard.core.outcome import Outcome, ruling
from tiltyard.objects import ObjectError, ObjectInfo, ObjectStore
from tiltyard.objects.crew import Crew
from tiltyard.store.attempts import Claim, Failed, Produced
from tiltyard.store.moves import Key
from tiltyard.telemetry.events import event_logger
from tiltyard.telemetry.propagation import context_from, inject, trace_id_of

log = event_logger("runner")
tracer = trace.get_tracer("tiltyard.runner")
UPLOADS = 4
"""Uploads at once."""
SPECS = 256
"""Specs of tasks kept parsed."""


class Recorder(Protocol):
    """Keeps the finished spans of this process."""

    def take_spans(self, trace_id: str) -> Sequence[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """An episode with when and under which span it happened."""

    episode: Episode
    started_at: datetime
    ended_at: datetime
    span: str
    """Its traceparent."""


class Attempts:
    """Runs attempts of one incarnation."""

    def __init__(
        self,
        *,
        incarnation: str,
        policy: Policy,
        objects: ObjectStore,
        commits: Commits,
        recorder: Recorder,
        metrics: Metrics,
        may_act: asyncio.Event,
        uploads: Crew,
    ) -> None:
        self._incarnation, self._policy, self._objects, self._commits = incarnation, policy, objects, commits
        self._recorder, self._metrics, self._may_act, self._uploads = recorder, metrics, may_act, uploads
        self._specs: OrderedDict[str, PublicSpec] = OrderedDict()
        self.handing_in: set[Key] = set()
        """Attempts whose episode is over: all that is left is to store and commit its record."""

    async def run(self, claim: Claim) -> None:
        """The whole attempt; raises nothing but cancellation."""
        try:
            end = await self._ended(claim)
            if not await self._commits.commit(end):
                log.warning("attempt.fenced_off", rollout_id=claim.rollout_id, fence=claim.fence)
        finally:
            self.handing_in.discard(claim.key)

    async def _ended(self, claim: Claim) -> Produced | Failed:
        try:
            played = await self._play(claim)
            self._metrics.attempted(
                played.episode.outcome, (played.ended_at - played.started_at).total_seconds()
            )
            self.handing_in.add(claim.key)
            return await self._keep(claim, played)
        except Exception as error:  # the attempt failed by our own fault: that is an outcome
            log.error("attempt.crashed", rollout_id=claim.rollout_id, fence=claim.fence, exc_info=True)
            return _failed(claim, Outcome.UNKNOWN, f"{type(error).__name__}: {error}")

    async def _play(self, claim: Claim) -> _Played:
        started = datetime.now(UTC)
        labels = {"rollout_id": claim.rollout_id, "run_id": claim.run_id, "fence": claim.fence}
        with tracer.start_as_current_span(
            "episode", context=context_from(claim.traceparent), attributes=labels
        ) as span:
            episode = await self._episode(claim)
            span.set_attribute("outcome", str(episode.outcome))
            if not ruling(episode.outcome).valid:
                span.set_status(trace.StatusCode.ERROR, episode.reason[:200])
            here = inject()
        return _Played(episode=episode, started_at=started, ended_at=datetime.now(UTC), span=here)

    async def _episode(self, claim: Claim) -> Episode:
        try:
            script = Script(
                spec=self._spec(claim),
                model=claim.model,
                sampling=parse(Sampling, claim.sampling, what=f"sampling of run {claim.run_id}"),
                seed=claim.seed,
            )
        except InvalidDocument as error:
            return Episode(outcome=Outcome.UNKNOWN, turns=(), answer=None, reason=str(error))
        return await play(script, self._policy)

    def _spec(self, claim: Claim) -> PublicSpec:
        """The task's spec: members of a group share one, and so do groups of one task."""
        spec = self._specs.get(claim.digest)
        if spec is None:
            spec = parse(PublicSpec, claim.public, what=f"task version {claim.digest}")
            self._specs[claim.digest] = spec
            if len(self._specs) > SPECS:
                self._specs.popitem(last=False)
        return spec

    async def _keep(self, claim: Claim, played: _Played) -> Produced | Failed:
        """Upload the record; how the attempt is to be committed."""
        await self._may_act.wait()
        with tracer.start_as_current_span("upload", context=context_from(played.span)):
            try:
                stored = await self._uploads.do(lambda: self._upload(claim, played))
            except ObjectError as error:
                return _failed(claim, Outcome.ARTIFACT_FAILED, str(error))
        self._spans(claim)
        return _end(claim, played.episode, stored)

    def _spans(self, claim: Claim) -> list[Span]:
        """Finished spans of the attempt that were not taken before."""
        return [dict(s) for s in self._recorder.take_spans(trace_id_of(claim.traceparent) or "")]

    def _upload(self, claim: Claim, played: _Played) -> ObjectInfo:
        """One object for the attempt. Its own span cannot be in it; that one goes to the collector alone."""
        record = AttemptRecord(
            run_id=claim.run_id,
            rollout_id=claim.rollout_id,
            fence=claim.fence,
            task_version=claim.digest,
            incarnation=self._incarnation,
            outcome=played.episode.outcome,
            reason=played.episode.reason,
            turns=played.episode.turns,
            answer=played.episode.answer,
            started_at=played.started_at,
            ended_at=played.ended_at,
            spans=(*self._spans(claim), *played.episode.spans),
        )
        return self._objects.put(attempt_key(claim.run_id, claim.rollout_id, claim.fence), pack(record))


def _end(claim: Claim, episode: Episode, stored: ObjectInfo) -> Produced | Failed:
    if not ruling(episode.outcome).valid:
        return Failed(
            key=claim.key,
            outcome=episode.outcome,
            reason=episode.reason,
            jitter=random.random(),
            artifact=stored.key,
            sha256=stored.sha256,
        )
    versions = [v for turn in episode.turns for v in turn.policy_versions]
    return Produced(
        key=claim.key,
        outcome=episode.outcome,
        artifact=stored.key,
        sha256=stored.sha256,
        oldest_version=min(versions, default=None),
        newest_version=max(versions, default=None),
        reason=episode.reason,
    )


def _failed(claim: Claim, outcome: Outcome, reason: str) -> Failed:
    return Failed(key=claim.key, outcome=outcome, reason=reason.replace("\x00", "?"), jitter=random.random())
