"""An evaluator as it runs: attempts become rewards, tasks active or quarantined, and no end of a process or
fault of the platform becomes a reward."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.integration.evaluator.outside import METADATA, Outside
from tiltyard.contracts.messages import ADMIT, GRADE
from tiltyard.contracts.records import AttemptRecord, GradingRecord, attempt_key, pack, unpack
from tiltyard.contracts.task_spec import CasesComponent, Oracle, PythonTestsComponent, Verifier
from tiltyard.core.outcome import Outcome
from tiltyard.objects import ObjectStore, open_store
from tiltyard.queue import open_publisher
from tiltyard.store import attempts
from tiltyard.store.attempts import Produced
from tiltyard.testing.processes import Processes
from tiltyard.testing.rows import Rows, Seeded, addition, traceparent

pytestmark = pytest.mark.sandbox


@dataclass(frozen=True, kw_only=True)
class Yard:
    """Everything around an evaluator."""

    rows: Rows
    objects: ObjectStore
    processes: Processes

    def produce(self, seeded: Seeded, *answers: str, stored: bool = True) -> list[str]:
        """Attempts that answered so; ids of their rollouts."""
        claims = self.rows.aboard(seeded, len(answers))
        ends = []
        for claim, answer in zip(claims, answers, strict=True):
            now = datetime.now(UTC)
            record = AttemptRecord(
                run_id=claim.run_id,
                rollout_id=claim.rollout_id,
                fence=claim.fence,
                task_version=claim.digest,
                incarnation="runner-1",
                outcome=Outcome.COMPLETED,
                answer=answer,
                started_at=now,
                ended_at=now,
            )
            key = attempt_key(claim.run_id, claim.rollout_id, claim.fence)
            sha256 = self.objects.put(key, pack(record)).sha256 if stored else "0" * 64
            ends.append(Produced(key=claim.key, outcome=Outcome.COMPLETED, artifact=key, sha256=sha256))
        with self.rows.work() as session:
            attempts.produce(session, ends)
        return [c.rollout_id for c in claims]

    def start(self, **settings: str) -> Any:
        return self.processes.start("services.evaluator", sandboxes="4", **settings)

    def rewards(self, ids: list[str]) -> list[float | None]:
        return [self.rows.value("SELECT reward FROM rollouts WHERE id = :id", id=i) for i in ids]

    def until_no(self, *states: str) -> None:
        """Wait until no rollout is in these states."""
        query = "SELECT count(*) FROM rollouts WHERE state = ANY(:states)"
        self.processes.until(
            lambda: self.rows.value(query, states=list(states)) == 0, f"no rollout is {', '.join(states)}"
        )

    def version_state(self, version_id: str) -> str:
        return self.rows.value("SELECT state FROM task_versions WHERE id = :id", id=version_id)


@pytest.fixture
def yard(rows: Rows, database_url: str, tmp_path: Path) -> Iterator[Yard]:
    objects = f"file://{tmp_path}/objects"
    with Processes(tmp_path, database_url=database_url, objects_url=objects) as processes:
        yield Yard(rows=rows, objects=open_store(objects), processes=processes)


def test_produced_attempts_become_rewards_with_records_and_spans(yard: Yard) -> None:
    seeded = yard.rows.run()
    ids = yard.produce(seeded, "return x+1", "return x+2", "while True: pass", "import os; os._exit(0)", "")
    yard.start()
    yard.until_no("PRODUCED")
    assert yard.rewards(ids) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert yard.rows.states(seeded) == ["SCORED"] * 5
    query = "SELECT outcome FROM gradings WHERE selected ORDER BY rollout_id"
    assert yard.rows.column(query) == ["graded", "graded", "code_cpu_limit", "graded", "graded"]
    key = yard.rows.value("SELECT artifact FROM gradings WHERE rollout_id = :id", id=ids[1])
    record = unpack(GradingRecord, yard.objects.get(key), what=key)
    assert record.reward == 0.0
    assert "returned 3, not 2" in record.scores[0].detail
    assert record.scores[0].tests == {"case_0": False, "case_1": False}
    (span,) = record.spans
    _, trace_id, parent, _ = traceparent(ids[1]).split("-")
    assert (span["name"], span["trace_id"], span["parent_id"]) == ("grade", trace_id, parent)


def test_each_connection_out_of_a_grading_is_on_the_rollouts_trace(yard: Yard, outside: Outside) -> None:
    seeded = yard.rows.run(outside.task(outside.open, METADATA))
    (rollout,) = yard.produce(
        seeded, f"return x + sum(map(net.get, {[outside.open, outside.shut, METADATA]}))"
    )
    yard.start(**outside.permission(outside.open, METADATA))
    yard.until_no("PRODUCED")
    assert yard.rewards([rollout]) == [1.0]
    key = yard.rows.value("SELECT artifact FROM gradings WHERE rollout_id = :id", id=rollout)
    record = unpack(GradingRecord, yard.objects.get(key), what=key)
    (grade,) = (span for span in record.spans if span["name"] == "grade")
    spans: list[Any] = [span for span in record.spans if span["name"] == "connect"]
    seen = {
        f"{a['server.address']}:{a['server.port']}": (a["verdict"], a["reason"], s["status"])
        for s in spans
        for a in [s["attributes"]]
    }
    assert seen == {
        outside.open: ("allowed", "done", "UNSET"),
        outside.shut: ("refused", "not_allowed", "UNSET"),
        METADATA: ("refused", "address", "UNSET"),
    }
    assert {s["parent_id"] for s in spans} == {grade["span_id"]}
    assert {s["attributes"]["whose"] for s in spans} == {"solution"}
    assert len(spans) == 6  # two cases
    allowed, _ = (s for s in spans if s["attributes"]["verdict"] == "allowed")
    assert allowed["kind"] == "CLIENT"
    assert allowed["attributes"]["bytes_down"] > 0
    assert allowed["end_ns"] > allowed["start_ns"]


@pytest.mark.rabbitmq
def test_the_same_over_rabbitmq(yard: Yard, rabbitmq_url: str, database_url: str) -> None:
    seeded = yard.rows.run()
    ids = yard.produce(seeded, "return x+1", "return x+2")
    version_id, admission_id = yard.rows.task(addition("other"))
    evaluator = yard.start(broker_url=rabbitmq_url)
    with open_publisher(rabbitmq_url, database_url) as publisher:
        publisher.enqueue(GRADE, ids)
        publisher.enqueue(ADMIT, [admission_id])
        yard.until_no("PRODUCED")
        yard.processes.until(lambda: yard.version_state(version_id) == "ACTIVE", "the task is admitted")
    assert yard.rewards(ids) == [1.0, 0.0]
    assert evaluator.terminate() == 0


def test_a_record_that_is_missing_makes_the_rollout_invalid_and_never_a_zero(yard: Yard) -> None:
    seeded = yard.rows.run(grader_retries=1)
    ids = yard.produce(seeded, "return x+1", "return x+1", stored=False)
    yard.start()
    yard.until_no("PRODUCED")
    assert yard.rows.states(seeded) == ["INVALID"] * 2
    assert yard.rewards(ids) == [None, None]
    assert yard.rows.column("SELECT DISTINCT outcome FROM gradings") == ["artifact_failed"]
    assert yard.rows.column("SELECT DISTINCT failures FROM gradings") == [2]


def test_a_killed_evaluators_gradings_are_done_by_the_next(yard: Yard) -> None:
    seeded = yard.rows.run()
    ids = yard.produce(seeded, *["import time; time.sleep(60)"] * 3)
    first = yard.start()
    leased = "SELECT count(*) FROM gradings WHERE state = 'LEASED'"
    yard.processes.until(lambda: yard.rows.value(leased) == 3, "the gradings are claimed")
    first.kill()
    with yard.rows.work() as session:
        session.execute(text("UPDATE gradings SET lease_until = clock_timestamp()"))
    yard.start()
    yard.until_no("PRODUCED")
    assert yard.rewards(ids) == [0.0] * 3
    assert yard.rows.column("SELECT DISTINCT number FROM gradings WHERE selected") == [2]


def test_an_evaluator_that_is_told_to_stop_gives_back_what_it_cannot_finish(yard: Yard) -> None:
    seeded = yard.rows.run()
    yard.produce(seeded, *["import time; time.sleep(60)"] * 3)
    evaluator = yard.start()
    leased = "SELECT count(*) FROM gradings WHERE state = 'LEASED'"
    yard.processes.until(lambda: yard.rows.value(leased) == 3, "the gradings are claimed")
    assert evaluator.terminate() == 0
    assert yard.rows.column("SELECT DISTINCT state FROM gradings") == ["QUEUED"]
    assert yard.rows.value("SELECT sum(failures) FROM gradings") == 0
    assert yard.rows.states(seeded) == ["PRODUCED"] * 3


def _tests(source: str, *expected: str) -> Verifier:
    component = PythonTestsComponent(kind="python_tests", files={"test_f.py": source}, expected=expected)
    return Verifier(components=(component,))


RIGHT = "from solution import f\ndef test_one():\n    assert f(1) == 2\n"
TASKS: dict[str, tuple[Any, str, str]] = {
    "sound cases": (addition("a"), "ACTIVE", "The oracle passed 3 of 3 runs and the no-op failed 3 of 3"),
    "sound tests": (
        addition("b", verifier=_tests(RIGHT, "test_f.test_one")),
        "ACTIVE",
        "fewer than 63% of runs",
    ),
    "oracle fails": (
        addition("c", oracle=Oracle(answer="return x+2")),
        "QUARANTINED",
        "The oracle failed 3 of 3 runs",
    ),
    "no-op passes": (
        addition("d", oracle=Oracle(answer="return x+1", noop="return 1+x")),
        "QUARANTINED",
        "The no-op passed 3 of 3 runs",
    ),
    "tests cannot be collected": (
        addition("e", verifier=_tests("import nothing_of_this_name\n" + RIGHT, "test_f.test_one")),
        "QUARANTINED",
        "No module named 'nothing_of_this_name'",
    ),
    "tests end without a verdict": (
        addition("f", verifier=_tests("import os\ndef test_one():\n    os._exit(0)\n", "test_f.test_one")),
        "QUARANTINED",
        "ended without a report",
    ),
    "an expected test is missing": (
        addition("g", verifier=_tests(RIGHT, "test_f.test_one", "test_f.test_two")),
        "QUARANTINED",
        "expected names test_f.test_two, which no file defines",
    ),
    "the oracle burns its time": (
        addition("h", oracle=Oracle(answer="while True: pass"), limits={"cpu_seconds": 0.5}),
        "QUARANTINED",
        "code_cpu_limit",
    ),
    "weightless": (
        addition(
            "i",
            verifier=Verifier(
                components=(
                    CasesComponent.model_validate(
                        {"kind": "cases", "entry_point": "f", "weight": 0, "cases": [{"expected": 1}]}
                    ),
                )
            ),
        ),
        "QUARANTINED",
        "weight 0",
    ),
}


def test_submitted_tasks_become_active_or_quarantined_with_a_report(yard: Yard) -> None:
    made = {name: yard.rows.task(spec, repeats=3) for name, (spec, _, _) in TASKS.items()}
    yard.start()
    waiting = "SELECT count(*) FROM admissions WHERE state IN ('QUEUED', 'LEASED')"
    yard.processes.until(lambda: yard.rows.value(waiting) == 0, "every admission is judged")
    for name, (_, state, message) in TASKS.items():
        version_id, admission_id = made[name]
        report = yard.rows.value("SELECT report FROM admissions WHERE id = :id", id=admission_id)
        assert (name, yard.version_state(version_id)) == (name, state), report
        assert message in report, name


def test_a_missing_setting_is_named(yard: Yard) -> None:
    service = yard.processes.start("services.evaluator", objects_url="")
    assert service.process.wait(60) == 1
    assert "TILTYARD_OBJECTS_URL" in service.log
