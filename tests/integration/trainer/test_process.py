"""The trainer as a process: from a dataset to a policy, killed in the middle of a run, asked to end."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.integration.store.world import TENANT
from tests.integration.trainer.conftest import POLICY, STEPS, School
from tiltyard.contracts.records import artifact_key
from tiltyard.contracts.run_config import SftRun
from tiltyard.store import runs, tenants
from tiltyard.testing.processes import Processes, Service


@pytest.fixture
def processes(school: School, tmp_path: Path) -> Iterator[Processes]:
    settings = {
        "database_url": school.database_url,
        "objects_url": school.objects_url,
        "cache_dir": str(tmp_path / "cache"),
        "torch_threads": "1",
    }
    with Processes(tmp_path, **settings) as started:
        yield started


def _trainer(processes: Processes) -> Service:
    return processes.start("services.trainer")


def _warm_start(school: School, lines: bytes, name: str) -> str:
    digest = sha256(lines).hexdigest()
    school.objects.put(artifact_key(f"sha256:{digest}"), lines)
    config = SftRun(kind="sft", name=name, policy=POLICY, dataset=f"sha256:{digest}", steps=3, batch=4)
    with school.world.work() as session:
        tenants.ensure(session, TENANT)
        return runs.create(session, TENANT, config)


def test_a_warm_start_publishes_version_0_and_a_bad_dataset_fails_by_line(
    school: School, processes: Processes
) -> None:
    good = b"".join(json.dumps({"prompt": "a", "completion": "b"}).encode() + b"\n" for _ in range(20))
    runs_by_kind = {
        "good": _warm_start(school, good, "good"),
        "bad": _warm_start(school, good + b'{"promt": "a"}\n', "bad"),
    }

    _trainer(processes)
    processes.until(
        lambda: all(school.state(r)[0] in ("COMPLETED", "FAILED") for r in runs_by_kind.values()),
        "both warm starts end",
    )

    assert school.state(runs_by_kind["good"]) == ("COMPLETED", "")
    assert school.versions(runs_by_kind["good"]) == [0]
    state, reason = school.state(runs_by_kind["bad"])
    assert state == "FAILED"
    assert "line 21" in reason
    assert school.versions(runs_by_kind["bad"]) == []


def test_a_run_survives_kill_9_and_ends_whole(school: School, processes: Processes) -> None:
    run = school.run(groups_ready=4)
    first = _trainer(processes)
    processes.until(lambda: len(school.versions(run)) > 1, "a step is committed")
    first.kill()
    school.ready(run, STEPS * 2 - 4)
    school.let_the_lease_run_out()

    second = _trainer(processes)
    processes.until(lambda: school.state(run)[0] == "COMPLETED", "the run ends")

    assert school.disagreements(run) == []
    assert second.terminate() == 0
