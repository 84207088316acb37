"""The fleet and its queue over the API: orders become rows, and what cannot be is said at once."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from services.cli.fleet import _sandboxes, _state
from tiltyard.contracts.document import parse
from tiltyard.contracts.http import NodeHealth, RunnerView
from tiltyard.store import fleet
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.rows import Rows

LATE = {"kind": "train", "name": "late", "taskset": "set", "policy": {"layers": 2}}


def _join(work: UnitOfWork, node: str = "n1", **more: object) -> None:
    with work() as session:
        fleet.join(session, f"{node}-1", node=node, slots=4, version="test", **more)  # type: ignore[arg-type]


def test_the_queue_says_who_waits_for_what(api: TestClient, rows: Rows, work: UnitOfWork) -> None:
    seeded = rows.run()
    rows.group(seeded, 3)
    view = api.get("/v1/queue").json()
    (entry,) = view["runs"]
    assert (entry["run_id"], entry["queued"], entry["aboard"]) == (seeded.run_id, 3, 0)
    nobody = "pool 'default' has no runner that takes work: start one, end its draining, or see its health"
    assert entry["waits_for"] == nobody
    assert entry["oldest_wait_seconds"] >= 0
    assert view["pools"][0]["desired_runners"] == 1

    _join(work)
    rows.grant(rows.column("SELECT id FROM rollouts ORDER BY id LIMIT 2"), "n1-1")
    view = api.get("/v1/queue").json()
    (entry,), (pool,) = view["runs"], view["pools"]
    assert (entry["queued"], entry["aboard"], entry["share"]) == (1, 2, 0.5)
    assert entry["waits_for"] == "its grant: there is room"
    assert (pool["used_slots"], pool["slots"], pool["queued"], pool["desired_runners"]) == (2, 4, 1, 1)


def test_what_waits_out_a_failure_says_so(api: TestClient, rows: Rows, work: UnitOfWork) -> None:
    rows.group(rows.run(), 2)
    _join(work)
    with work() as session:
        session.execute(text("UPDATE rollouts SET not_before = clock_timestamp() + interval '1 hour'"))
    (entry,) = api.get("/v1/queue").json()["runs"]
    assert (entry["backing_off"], entry["waits_for"]) == (2, "its back-off after a failure")


def test_a_node_is_drained_and_taken_back(api: TestClient, work: UnitOfWork) -> None:
    _join(work, cpu=2.0, memory_mb=512, gpu=1)
    (drained,) = api.post("/v1/fleet/n1/drain", json={"draining": True}).json()["items"]
    assert drained["draining"]
    assert (drained["cpu"], drained["memory_mb"], drained["gpu"]) == (2.0, 512, 1)
    (taken,) = api.post("/v1/fleet/n1/drain", json={"draining": False}).json()["items"]
    assert not taken["draining"]
    nobody = api.post("/v1/fleet/n9/drain", json={})
    assert nobody.status_code == 404
    assert "no living runner is on node 'n9'; `tiltyard fleet show`" in nobody.json()["detail"]


def test_the_fleet_shows_what_its_sandboxes_told(api: TestClient, work: UnitOfWork) -> None:
    _join(work)
    assert api.get("/v1/fleet").json()["items"][0]["health"] is None
    told = NodeHealth(state="open", reason="memory pressure 81 %", pressure={"memory": 81.0}, drifted=2)
    with work() as session:
        fleet.heartbeat(session, "n1-1", told)
    (runner,) = api.get("/v1/fleet").json()["items"]
    assert parse(NodeHealth, runner["health"], what="health") == told
    assert _state(parse(RunnerView, runner, what="runner")) == "ill"
    assert _sandboxes(told) == "memory pressure 81 %; 2 drifted"


def test_a_runs_priority_is_changed_while_it_lives(api: TestClient, rows: Rows) -> None:
    seeded = rows.run()
    path = f"/v1/runs/{seeded.run_id}/priority"
    assert api.post(path, json={"priority": "high"}).json()["config"]["priority"] == "high"
    assert api.post(path, json={"priority": "urgent"}).status_code == 422
    api.post(f"/v1/runs/{seeded.run_id}/cancel")
    late = api.post(path, json={"priority": "low"})
    assert late.status_code == 409
    assert "is CANCELLED: its priority no longer matters" in late.json()["detail"]


def test_a_run_that_completed_is_not_cancelled(api: TestClient, rows: Rows, work: UnitOfWork) -> None:
    seeded = rows.run()
    with work() as session:
        session.execute(text("UPDATE runs SET state = 'COMPLETED'"))
    answer = api.post(f"/v1/runs/{seeded.run_id}/cancel")
    assert answer.status_code == 409
    assert "is COMPLETED: there is nothing left to cancel" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("rules", "status", "told"),
    [
        ({"pool": "gpus"}, 422, "no runner has ever joined a pool 'gpus'; did you mean 'gpu'?"),
        ({"pool": "gpu", "demand": {"slots": 5}}, 422, "ever had: slots 5 of 4; ask for less under"),
        ({"pool": "gpu", "demand": {"gpu": 9}}, 422, "ever had: gpu 9 of 2"),
        ({"pool": "gpu", "demand": {"gpu": 2}}, 201, ""),
        ({"weight": 0}, 422, "greater than 0"),
        ({"max_running": -1}, 422, "greater than or equal to 1"),
        ({"demand": {"gpu": -1}}, 422, "greater than or equal to 0"),
        ({"demand": {"slot": 1}}, 422, "slots"),
    ],
)
def test_a_run_that_could_never_start_is_refused_at_once(
    api: TestClient, rows: Rows, work: UnitOfWork, rules: dict[str, object], status: int, told: str
) -> None:
    rows.run()
    _join(work, pool="gpu", gpu=2)
    answer = api.post("/v1/runs", json={**LATE, "rollouts": rules})
    assert answer.status_code == status, answer.text
    assert told in answer.text


def test_a_tenant_with_a_full_queue_is_asked_to_come_back(api: TestClient, rows: Rows) -> None:
    rows.group(rows.run(), 2)
    assert api.patch("/v1/tenants/default/limits", json={"weight": 2, "max_queued": 2}).status_code == 200
    answer = api.post("/v1/runs", json=LATE)
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert "has 2 rollouts queued, and may have 2" in answer.json()["detail"]
    api.patch("/v1/tenants/default/limits", json={"max_queued": 3})
    assert api.post("/v1/runs", json=LATE).status_code == 201


@pytest.mark.parametrize(
    ("place", "change", "told"),
    [
        ("tenants/default", {"weight": 0}, '"weight","message":"Input should be greater than 0"'),
        ("tenants/default", {"weight": -1}, '"weight","message":"Input should be greater than 0"'),
        ("tenants/default", {"weight": None}, "weight"),
        ("tenants/default", {"max_running": -1}, "max_running"),
        ("tenants/default", {"max_queued": -1}, "max_queued"),
        ("tenants/default", {"max_running": 2**40}, "max_running"),
        ("tenants/default", {"max_runing": 1}, "did you mean 'max_running'"),
        ("tenants/default", {}, "nothing is given to change; tenant limits are weight, max_running"),
        ("pools/default", {"max_running": -1}, "max_running"),
        ("pools/default", {"headroom": -1}, "headroom"),
        ("pools/default", {"headroom": None}, "headroom"),
        ("pools/default", {}, "nothing is given to change"),
        ("images/host", {"max_running": -1}, "max_running"),
        ("images/host", {}, "max_running"),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    api: TestClient, rows: Rows, place: str, change: dict[str, object], told: str
) -> None:
    rows.run()
    answer = api.patch(f"/v1/{place}/limits", json=change)
    assert answer.status_code == 422
    assert told in answer.text
    assert rows.column("SELECT weight FROM tenants") == [1.0]
    assert rows.column("SELECT name FROM pools") == rows.column("SELECT name FROM images") == []


def test_what_a_change_leaves_out_stays_as_it_is(api: TestClient, rows: Rows) -> None:
    """A cap is taken away by null; a weight is set once."""

    def changed(place: str, **change: object) -> dict[str, object]:
        answer = api.patch(f"/v1/{place}/limits", json=change)
        assert answer.status_code == 200, answer.text
        return answer.json()

    rows.run()
    assert changed("tenants/default", weight=2) == {"weight": 2.0, "max_running": None, "max_queued": None}
    assert changed("tenants/default", max_running=5)["weight"] == 2.0
    assert changed("tenants/default", max_queued=9)["max_running"] == 5
    last = changed("tenants/default", max_running=None)
    assert last == {"weight": 2.0, "max_running": None, "max_queued": 9}
    assert rows.value("SELECT weight FROM tenants WHERE id = 'default'") == 2.0

    assert changed("pools/gpu", max_running=3) == {"max_running": 3, "headroom": 0}
    assert changed("pools/gpu", headroom=2) == {"max_running": 3, "headroom": 2}
    assert changed("pools/gpu", max_running=None) == {"max_running": None, "headroom": 2}

    assert changed("images/host", max_running=4) == {"max_running": 4}
    assert changed("images/host", max_running=0) == {"max_running": 0}
    assert changed("images/host", max_running=None) == {"max_running": None}
    assert rows.column("SELECT name FROM images") == []


def test_the_queue_tells_who_waits_for_headroom_or_for_an_image(
    api: TestClient, rows: Rows, work: UnitOfWork
) -> None:
    rows.group(rows.run(), 2)
    _join(work)
    api.patch("/v1/pools/default/limits", json={"headroom": 4})
    view = api.get("/v1/queue").json()
    assert view["runs"][0]["waits_for"] == "pool 'default' keeps 4 slots for high runs"
    assert view["pools"][0]["headroom"] == 4

    api.patch("/v1/pools/default/limits", json={"headroom": 0})
    api.patch("/v1/images/host/limits", json={"max_running": 0})
    (entry,) = api.get("/v1/queue").json()["runs"]
    assert entry["waits_for"] == "as many rollouts of its image are aboard as may be"


def test_the_desired_runners_are_a_metric(api: TestClient, rows: Rows, work: UnitOfWork) -> None:
    rows.group(rows.run(), 9)
    _join(work)
    assert 'tiltyard_runners_desired{pool="default"} 3.0' in api.get("/metrics").text
