"""Documents that are stored or sent keep their meaning: a golden file for each version of each.

A golden file holds what was given, the whole document with its defaults, and the hash of its canonical JSON.
A run config may gain a key: add its default here. Any other change needs a new `schema_version`: stored
records and the names of task versions hang on it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tiltyard.contracts.document import Document, canonical_json, content_hash, parse
from tiltyard.contracts.messages import JobBatch
from tiltyard.contracts.records import AttemptRecord, GradingRecord, StepManifest
from tiltyard.contracts.run_config import EvaluationRun, SftRun, TrainRun
from tiltyard.contracts.task_spec import TaskSpec

MODELS: dict[str, type[Document]] = {
    model.__name__: model
    for model in (
        TaskSpec,
        SftRun,
        TrainRun,
        EvaluationRun,
        AttemptRecord,
        GradingRecord,
        StepManifest,
        JobBatch,
    )
}
FILES = sorted((Path(__file__).parent / "golden").glob("*.json"))


def _golden(path: Path) -> tuple[type[Document], dict[str, Any]]:
    golden = json.loads(path.read_text())
    return MODELS[golden["model"]], golden


def test_every_versioned_document_has_a_golden_file() -> None:
    assert {_golden(path)[0] for path in FILES} == set(MODELS.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_document_keeps_its_meaning_and_its_hash(path: Path) -> None:
    model, golden = _golden(path)

    document = parse(model, golden["given"], what=path.name)

    assert document.model_dump(mode="json") == golden["whole"]
    assert content_hash(document) == golden["sha256"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_document_survives_being_stored_and_read(path: Path) -> None:
    model, golden = _golden(path)
    document = parse(model, golden["given"], what=path.name)

    again = parse(model, json.loads(canonical_json(document)), what=path.name)

    assert again == document
    assert canonical_json(again) == canonical_json(document)


def test_the_hash_is_that_of_sorted_utf8_json_without_spaces() -> None:
    document = {"b": [1, 2.5], "a": "ä"}

    assert canonical_json(document) == '{"a":"ä","b":[1,2.5]}'.encode()
    assert content_hash(document) == content_hash({"a": "ä", "b": [1, 2.5]})


def test_the_public_half_of_a_task_holds_neither_verifier_nor_oracle() -> None:
    _, golden = _golden(next(p for p in FILES if p.stem == "task_spec.1"))
    spec = parse(TaskSpec, golden["given"], what="spec")

    public = spec.public().model_dump(mode="json")

    assert public == {k: v for k, v in golden["whole"].items() if k not in {"verifier", "oracle"}}
    assert spec.hidden().model_dump(mode="json") == {k: golden["whole"][k] for k in ("verifier", "oracle")}


def test_a_task_version_is_the_hash_of_the_whole_document() -> None:
    _, golden = _golden(next(p for p in FILES if p.stem == "task_spec.1"))
    spec = parse(TaskSpec, golden["given"], what="spec")
    other = parse(TaskSpec, {**golden["given"], "oracle": {"answer": "    return b + a\n"}}, what="spec")

    assert spec.version() == golden["sha256"]
    assert other.version() != spec.version()


def test_an_answer_stands_between_prefix_and_suffix() -> None:
    _, golden = _golden(next(p for p in FILES if p.stem == "task_spec.1"))
    public = parse(TaskSpec, golden["given"], what="spec").public()

    assert public.solution("    return 3") == "def add(a, b):\n    return 3\n"
