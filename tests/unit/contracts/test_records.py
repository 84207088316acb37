"""Records are packed the same way every time, and unpacked with suspicion."""

import gzip
import json
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.contracts import records
from tiltyard.contracts.document import InvalidDocument
from tiltyard.contracts.records import AttemptRecord, Turn, pack, unpack
from tiltyard.core.outcome import Outcome

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
text = st.text(st.characters(codec="utf-8"), max_size=30)
logprobs = st.lists(st.floats(-1e4, 0), max_size=5).map(tuple)


def _record(answer: str | None = "x", turns: tuple[Turn, ...] = ()) -> AttemptRecord:
    return AttemptRecord(
        run_id="run",
        rollout_id="r",
        fence=1,
        task_version="v",
        incarnation="i",
        outcome=Outcome.COMPLETED,
        answer=answer,
        turns=turns,
        started_at=WHEN,
        ended_at=WHEN,
    )


def _turn(said: str, logprobs: tuple[float, ...]) -> Turn:
    n = len(logprobs)
    return Turn(
        prompt_token_ids=(1, 2),
        token_ids=tuple(range(n)),
        logprobs=logprobs,
        policy_versions=(7,) * n,
        text=said,
        finish_reason="stop",
    )


@given(text, logprobs)
def test_what_was_packed_is_unpacked_bit_for_bit(answer: str, given_logprobs: tuple[float, ...]) -> None:
    record = _record(answer, (_turn(answer, given_logprobs),))

    assert unpack(AttemptRecord, pack(record), what="record") == record


@given(text)
def test_equal_records_give_equal_bytes(answer: str) -> None:
    packed = pack(_record(answer))

    assert pack(unpack(AttemptRecord, packed, what="record")) == packed


def test_an_absent_answer_is_not_an_empty_one() -> None:
    assert unpack(AttemptRecord, pack(_record(None)), what="record").answer is None
    assert unpack(AttemptRecord, pack(_record("")), what="record").answer == ""


def test_a_record_that_unpacks_without_end_is_refused() -> None:
    bomb = gzip.compress(b"[" + b" " * 2_000_000 + b"]")

    assert len(bomb) < 3_000
    with pytest.raises(ValueError, match=r"record r1 .* larger than 1000000 bytes unpacked"):
        unpack(AttemptRecord, bomb, what="record r1", limit=1_000_000)


def test_a_record_at_its_limit_is_read() -> None:
    raw = gzip.decompress(pack(_record()))

    assert unpack(AttemptRecord, gzip.compress(raw), what="record", limit=len(raw)) == _record()
    with pytest.raises(ValueError, match="larger than"):
        unpack(AttemptRecord, gzip.compress(raw), what="record", limit=len(raw) - 1)


PACKED = pack(_record("answer" * 20))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        PACKED[:-9],
        PACKED[:20],
        PACKED[:30] + b"\xff\xff\xff\xff" + PACKED[34:],
        PACKED[:-8] + b"\x00" * 8,
        gzip.compress(b"{"),
        gzip.compress(b"\xff"),
        gzip.compress(b"[" * 200_000),
        gzip.compress(b"1" * 5_000),
    ],
    ids=["empty", "plain", "cut", "stump", "flipped", "checksum", "half", "latin", "deep", "huge number"],
)
def test_what_is_no_record_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(ValueError, match="record r1 is not gzipped JSON"):
        unpack(AttemptRecord, data, what="record r1")


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_never_read_as_another_record(place: int, flip: int) -> None:
    data = bytearray(PACKED)
    data[place] ^= flip
    with suppress(ValueError):
        assert unpack(AttemptRecord, bytes(data), what="record") == _record("answer" * 20)


def test_a_record_of_another_shape_names_its_faults() -> None:
    with pytest.raises(InvalidDocument, match=r"record r1 is not valid: .*zzz: unknown key 'zzz'"):
        unpack(AttemptRecord, gzip.compress(json.dumps({"zzz": 1}).encode()), what="record r1")


def test_a_record_of_a_later_version_is_refused() -> None:
    later = {**_record().model_dump(mode="json"), "schema_version": 2}

    with pytest.raises(InvalidDocument, match="schema_version"):
        unpack(AttemptRecord, gzip.compress(json.dumps(later).encode()), what="record")


def test_an_outcome_outside_of_the_table_is_refused() -> None:
    odd = {**_record().model_dump(mode="json"), "outcome": "exploded"}

    with pytest.raises(InvalidDocument, match="outcome"):
        unpack(AttemptRecord, gzip.compress(json.dumps(odd).encode()), what="record")


def test_a_turn_has_one_logprob_and_one_version_for_each_token() -> None:
    with pytest.raises(ValueError, match="2 token_ids, 1 logprobs, 2 policy_versions"):
        Turn(
            prompt_token_ids=(),
            token_ids=(1, 2),
            logprobs=(-1.0,),
            policy_versions=(0, 0),
            text="",
            finish_reason="stop",
        )


def test_keys_name_run_rollout_and_fence() -> None:
    assert records.attempt_key("run", "r", 3) == "runs/run/rollouts/r/3/attempt.json.gz"
    assert records.grading_key("run", "r", 3, 2) == "runs/run/rollouts/r/3/grading-2.json.gz"
    assert records.step_key("run", 4, 2) == "runs/run/steps/4/2/manifest.json.gz"
    assert records.policy_prefix("run", 5) == "runs/run/policies/5/"
    assert records.artifact_key("sha256:ab") == "artifacts/ab"
