"""The samples of a recorded step, read from where its attempts are kept.

Guarantees: tokens and log-probabilities are those that the generator stated; a member without a valid reward
gives no sample.
Does not: re-tokenise."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.trainer.batch import Sample
from tiltyard.contracts.records import AttemptRecord, TrainedGroup, TrainedRollout, unpack
from tiltyard.contracts.run_config import TrainRun
from tiltyard.core.group import advantages
from tiltyard.objects import ObjectStore
from tiltyard.store.training import Step, StepGroup, StepMember

READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What a step learns from, and how its manifest tells it."""

    samples: tuple[Sample, ...]
    groups: tuple[TrainedGroup, ...]
    rewards: tuple[float, ...]
    traceparents: tuple[str, ...]


def harvest(objects: ObjectStore, step: Step, config: TrainRun, *, version: int) -> Harvest:
    """Read every attempt of the step; `version` is the policy version that is trained.

    Raises what the object store raises, and ValueError for a record that is not one."""
    members = [m for g in step.groups for m in g.members if m.reward is not None and m.artifact]
    with ThreadPoolExecutor(READERS) as pool:
        records = dict(
            zip((m.rollout_id for m in members), pool.map(lambda m: _read(objects, m), members), strict=True)
        )
    advantage = {
        m.rollout_id: a
        for g in step.groups
        for m, a in zip(
            g.members, advantages([m.reward for m in g.members], config.loss.estimator), strict=True
        )
    }
    return Harvest(
        samples=tuple(
            s
            for m in members
            for s in samples_of(records[m.rollout_id], advantage[m.rollout_id] or 0.0, version)
        ),
        groups=tuple(_trained(g, advantage) for g in step.groups),
        rewards=tuple(m.reward for m in members if m.reward is not None),
        traceparents=tuple(m.traceparent for m in members if m.traceparent),
    )


def _read(objects: ObjectStore, member: StepMember) -> AttemptRecord:
    key = member.artifact or ""
    return unpack(AttemptRecord, objects.get(key), what=key)


def samples_of(record: AttemptRecord, advantage: float, version: int) -> Iterable[Sample]:
    """One sample a turn: a turn's prompt holds every earlier one."""
    for turn in record.turns:
        if turn.token_ids:
            yield Sample(
                prompt=turn.prompt_token_ids,
                completion=turn.token_ids,
                behaviour=turn.logprobs,
                advantage=advantage,
                staleness=version - min(turn.policy_versions),
            )


def _trained(group: StepGroup, advantage: dict[str, float | None]) -> TrainedGroup:
    return TrainedGroup(
        group_id=group.id,
        rollouts=tuple(
            TrainedRollout(
                rollout_id=m.rollout_id, fence=m.fence, reward=m.reward, advantage=advantage[m.rollout_id]
            )
            for m in group.members
        ),
    )
