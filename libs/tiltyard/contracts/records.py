"""Documents kept in the object store: one per attempt, one per grading, one per training step.

Guarantees: each is written once, to an immutable key, before the row that points to it.
Does not: decide anything; a record without its row does not count.

Keys: `runs/<run>/rollouts/<rollout>/<fence>/attempt.json.gz`, `…/grading-<number>.json.gz`,
`runs/<run>/steps/<step>/<fence>/manifest.json.gz`, `runs/<run>/policies/<version>/…`,
`artifacts/<sha256>`."""

import gzip
import zlib
from datetime import datetime
from typing import Literal, TypeVar

from pydantic import Field, JsonValue, model_validator

from tiltyard.contracts.document import Document, NotJson, parse_json
from tiltyard.core.outcome import Outcome

Span = dict[str, JsonValue]
"""One finished span: name, trace_id, span_id, parent_id, start_ns, end_ns, service, status, attributes,
events, links."""


class Turn(Document):
    """One model message: what it was conditioned on, and its tokens with their log-probabilities."""

    prompt_token_ids: tuple[int, ...]
    """The whole context that the tokens were sampled from."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """log p of each token under the distribution that it was sampled from; as long as `token_ids`."""
    policy_versions: tuple[int, ...]
    """Policy version of each token; as long as `token_ids`."""
    text: str
    finish_reason: str

    @model_validator(mode="after")
    def _one_of_each_for_each_token(self) -> "Turn":
        tokens, logprobs, versions = len(self.token_ids), len(self.logprobs), len(self.policy_versions)
        if not tokens == logprobs == versions:
            raise ValueError(
                f"{tokens} token_ids, {logprobs} logprobs, {versions} policy_versions: a token needs one of"
                " each"
            )
        return self


class AttemptRecord(Document):
    """What happened during one attempt."""

    schema_version: Literal[1] = 1
    run_id: str
    rollout_id: str
    fence: int
    task_version: str
    incarnation: str
    outcome: Outcome
    reason: str = ""
    turns: tuple[Turn, ...] = ()
    answer: str | None = None
    """The policy's answer; None when the attempt failed."""
    started_at: datetime
    ended_at: datetime
    spans: tuple[Span, ...] = ()


class ScoreRecord(Document):
    """One component's measurement."""

    component: str
    value: float | None
    weight: float
    gate: bool
    tier: int
    outcome: Outcome
    """`graded`, or how the policy's code ended; an end that is not valid makes the whole grading invalid."""
    detail: str = ""
    """For people: which tests failed and why."""
    tests: dict[str, bool] = Field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False


class GradingRecord(Document):
    """One grading of one attempt."""

    schema_version: Literal[1] = 1
    rollout_id: str
    fence: int
    number: int
    verifier: str
    """Content hash of the hidden spec that graded."""
    outcome: Outcome
    reason: str = ""
    reward: float | None
    scores: tuple[ScoreRecord, ...] = ()
    started_at: datetime
    ended_at: datetime
    spans: tuple[Span, ...] = ()


class TrainedRollout(Document):
    """One member of a step's group."""

    rollout_id: str
    fence: int
    reward: float | None
    advantage: float | None
    """None for an invalid member, which was not trained on."""


class TrainedGroup(Document):
    group_id: str
    rollouts: tuple[TrainedRollout, ...]


class StepManifest(Document):
    """What one training step was made of."""

    schema_version: Literal[1] = 1
    run_id: str
    step: int
    version: int
    """The policy version that the step made."""
    groups: tuple[TrainedGroup, ...]
    metrics: dict[str, float]
    spans: tuple[Span, ...] = ()


R = TypeVar("R", bound=Document)
GZIP = 16 + zlib.MAX_WBITS
"""Window of a stream with gzip's header and checksum."""


def attempt_key(run_id: str, rollout_id: str, fence: int) -> str:
    return f"runs/{run_id}/rollouts/{rollout_id}/{fence}/attempt.json.gz"


def grading_key(run_id: str, rollout_id: str, fence: int, number: int) -> str:
    return f"runs/{run_id}/rollouts/{rollout_id}/{fence}/grading-{number}.json.gz"


def step_key(run_id: str, step: int, fence: int) -> str:
    """`fence` is the run's: a step that is computed again leaves the first manifest as it was."""
    return f"runs/{run_id}/steps/{step}/{fence}/manifest.json.gz"


def policy_prefix(run_id: str, version: int) -> str:
    return f"runs/{run_id}/policies/{version}/"


def artifact_key(digest: str) -> str:
    """Key of an uploaded artifact named `sha256:…`."""
    return f"artifacts/{digest.removeprefix('sha256:')}"


def pack(record: Document) -> bytes:
    """JSON in the order of its fields, gzipped without a time stamp: packed again it gives the same bytes."""
    return gzip.compress(record.model_dump_json().encode(), compresslevel=1, mtime=0)


MAX_RECORD = 256_000_000


def unpack(model: type[R], data: bytes, *, what: str, limit: int = MAX_RECORD) -> R:
    """The record in `data`; raises `InvalidDocument`, or ValueError when it is no gzipped JSON of at most
    `limit` bytes."""
    try:
        return parse_json(model, _gunzip(data, limit), what=what)
    except (zlib.error, NotJson) as error:
        raise ValueError(f"{what} is not gzipped JSON that can be read: {error}") from error


def _gunzip(data: bytes, limit: int) -> bytes:
    """Raises zlib.error for what is cut, changed, followed by something or too large."""
    stream = zlib.decompressobj(GZIP)
    raw = stream.decompress(data, limit + 1)
    if len(raw) > limit:
        raise zlib.error(f"it is larger than {limit} bytes unpacked")
    if not stream.eof or stream.unused_data:
        raise zlib.error("it is cut short" if not stream.eof else "something follows it")
    return raw
