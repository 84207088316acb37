"""A runner lends its sandboxes to outside harnesses."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.evaluator.outside import METADATA, NET, Outside
from tests.integration.runner.conftest import Yard
from tiltyard.client.errors import ApiError
from tiltyard.client.sandboxes import SandboxClient
from tiltyard.contracts.http import NodeHealth
from tiltyard.contracts.network import NetworkAccess, NetworkShape
from tiltyard.store.database import UnitOfWork
from tiltyard.store.views import rollouts as views
from tiltyard.testing.processes import Processes, free_port
from tiltyard.testing.servers import Postgres

pytestmark = pytest.mark.sandbox
TOKEN = "t" * 32


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A runner that lends two sandboxes."""

    url: str
    processes: Processes
    database_url: str

    def client(self, token: str = TOKEN) -> SandboxClient:
        return SandboxClient(self.url, token)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKEN}", **options.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=60, **options)

    def answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/healthz").status_code == 200
        return False


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with Outside() as world:
        yield world


@pytest.fixture(scope="module")
def desk(
    postgres: Postgres, migrated: str, tmp_path_factory: pytest.TempPathFactory, outside: Outside
) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    (token := folder / "token").write_text(TOKEN)
    token.chmod(0o600)
    settings = {
        "database_url": postgres.database(template=migrated),
        "objects_url": f"file://{folder}/objects",
        "rollout_url": "http://127.0.0.1:9",
        "sandbox_port": str(port := free_port()),
        "sandboxes": "2",
        "token_file": str(token),
        **outside.permission(outside.open, METADATA),
    }
    with Processes(folder, **settings) as processes:
        runner = processes.start("services.runner")
        desk = Desk(
            url=f"http://127.0.0.1:{port}", processes=processes, database_url=settings["database_url"]
        )
        processes.until(desk.answers, "the runner lends")
        yield desk
        assert runner.terminate() == 0, runner.log


def test_a_borrowed_sandbox_runs_commands_and_keeps_files_until_it_is_given_back(desk: Desk) -> None:
    with desk.client() as runner:
        with runner.borrow() as box:
            box.write("sub/main.py", b"print(6 * 7)")
            done = box.exec(["python3", "sub/main.py"])
            assert (done.outcome, done.exit_code, done.stdout) == ("ok", 0, "42\n")
            assert box.exec(["sh", "-c", "cat; echo $A > /tmp/a"], stdin="in", env={"A": "1"}).stdout == "in"
            assert box.read("/tmp/a") == b"1\n"
            late = box.exec(["sleep", "60"], wall_seconds=0.3)
            assert (late.outcome, late.exit_code) == ("timeout_wall", None)
        with pytest.raises(ApiError, match="is gone: its holder released it") as gone:
            box.exec(["true"])
        assert gone.value.problem.status == 410


def test_what_is_wrong_is_told_with_its_status(desk: Desk) -> None:
    with desk.client() as runner, runner.borrow() as box:
        path = f"/v1/sandboxes/{box.lent.id}"
        for method, where, body, status, detail in [
            ("GET", f"{path}/files/absent", None, 404, "No such file"),
            ("PUT", f"{path}/files/..%2F..%2Fetc/x", b"", 422, "contains '..'"),
            ("GET", "/v1/sandboxes/nobody", None, 404, "there is no sandbox"),
            ("POST", f"{path}/exec", {"argv": []}, 422, "is not valid"),
            ("POST", f"{path}/exec", {"argv": ["true"], "cpu_second": 1}, 422, "is not valid"),
            ("POST", "/v1/sandboxes", {"image": "debian"}, 422, "lends sandboxes with image host"),
        ]:
            sent = {"content": body} if isinstance(body, bytes) else {"json": body} if body else {}
            answer = desk.ask(method, where, **sent)
            assert answer.status_code == status, (where, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            assert detail in answer.json()["detail"], answer.text


def test_nobody_enters_without_the_token(desk: Desk) -> None:
    assert httpx.post(f"{desk.url}/v1/sandboxes", json={}).status_code == 401
    with desk.client("wrong" * 8) as runner, pytest.raises(ApiError) as refused:
        runner.borrow()
    assert refused.value.problem.status == 401
    assert desk.ask("GET", "/v1/sandboxes", headers={"Host": "evil.example"}).status_code == 421


def test_when_all_are_lent_the_next_one_is_told_when_to_ask_again(desk: Desk) -> None:
    with desk.client() as runner, runner.borrow(), runner.borrow():
        full = desk.ask("POST", "/v1/sandboxes", json={"wait_seconds": 0.1})
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        page = desk.ask("GET", "/v1/sandboxes").json()
        assert (len(page["items"]), page["size"]) == (2, 2)


def test_a_lease_that_ends_takes_the_sandbox_along(desk: Desk) -> None:
    with desk.client() as runner:
        box = runner.borrow(lease_seconds=1.0)
        desk.processes.until(
            lambda: desk.ask("GET", "/v1/sandboxes").json()["items"] == [], "the lease ends by itself"
        )
        with pytest.raises(ApiError, match="nobody asked for it for 1 s") as gone:
            box.read("x")
        assert gone.value.problem.status == 410


def test_a_command_repeated_with_its_key_runs_once(desk: Desk) -> None:
    with desk.client() as runner, runner.borrow() as box:

        def send(key: str) -> dict[str, Any]:
            body = {"argv": ["sh", "-c", "sleep 1; echo x >> log; wc -l < log"]}
            path = f"/v1/sandboxes/{box.lent.id}/exec"
            return desk.ask("POST", path, json=body, headers={"Idempotency-Key": key}).json()

        with ThreadPoolExecutor(2) as threads:
            one, two = threads.map(send, ["k", "k"])
        assert one == two
        assert one["stdout"].strip() == "1"
        assert send("other")["stdout"].strip() == "2"


def test_output_is_streamed_as_it_comes(desk: Desk) -> None:
    with desk.client() as runner, runner.borrow() as box:
        assert box.exec(["mkfifo", "go"]).outcome == "ok"
        with httpx.stream(
            "POST",
            f"{desk.url}/v1/sandboxes/{box.lent.id}/exec",
            json={"argv": ["sh", "-c", "echo early; sleep 0.5; echo late >&2; exit 3"], "encoding": "base64"},
            headers={"Authorization": f"Bearer {TOKEN}", "Accept": "application/x-ndjson"},
        ) as answer:
            events = [json.loads(line) for line in answer.iter_lines()]
    assert events[0] == {"stream": "stdout", "data": "ZWFybHkK"}
    assert events[1] == {"stream": "stderr", "data": "bGF0ZQo="}
    assert (events[-1]["result"]["outcome"], events[-1]["result"]["exit_code"]) == ("nonzero", 3)


def test_a_stream_that_cannot_start_is_a_problem(desk: Desk) -> None:
    with desk.client() as runner, runner.borrow() as box:
        path = f"/v1/sandboxes/{box.lent.id}/exec"
        streamed = {"Accept": "application/x-ndjson"}
        body = {"argv": ["sh", "-c", "echo started; sleep 600"], "cpu_seconds": 600}
        with httpx.stream(
            "POST", desk.url + path, json=body, headers={"Authorization": f"Bearer {TOKEN}", **streamed}
        ) as answer:
            lines = answer.iter_lines()
            assert "started" in next(lines)
            second = desk.ask("POST", path, json={"argv": ["true"]}, headers=streamed)
        assert second.status_code == 409, second.text
        assert second.headers["content-type"] == "application/problem+json"


def test_a_stream_that_nobody_reads_any_more_ends_the_sandbox(desk: Desk) -> None:
    with desk.client() as runner:
        box = runner.borrow()
        with httpx.stream(
            "POST",
            f"{desk.url}/v1/sandboxes/{box.lent.id}/exec",
            json={"argv": ["sh", "-c", "echo started; sleep 600"], "wall_seconds": 600, "cpu_seconds": 600},
            headers={"Authorization": f"Bearer {TOKEN}", "Accept": "application/x-ndjson"},
        ) as answer:
            assert "started" in next(answer.iter_lines())
        desk.processes.until(
            lambda: desk.ask("GET", f"/v1/sandboxes/{box.lent.id}").status_code == 410, "the sandbox is ended"
        )


def test_a_paused_sandbox_refuses_commands_until_it_is_resumed(desk: Desk) -> None:
    with desk.client() as runner:
        with runner.borrow() as box:
            box.write("kept", b"1")
            box.pause()
            box.pause()
            assert desk.ask("GET", f"/v1/sandboxes/{box.lent.id}").json()["paused"]
            for call in (lambda: box.exec(["true"]), lambda: box.read("kept")):
                with pytest.raises(ApiError, match="paused: POST …/resume first") as refused:
                    call()
                assert refused.value.problem.status == 409
            box.renew(30)
            box.resume()
            assert box.exec(["cat", "kept"]).stdout == "1"
            box.pause()
        assert desk.ask("GET", "/v1/sandboxes").json()["items"] == []


def test_a_borrowed_sandbox_reaches_what_its_order_names_and_the_runner_allows(
    desk: Desk, outside: Outside
) -> None:
    asking = "import net, sys; print(*map(net.get, sys.argv[1:]))"
    command = ["python3", "-c", asking, outside.open, outside.shut, METADATA]
    with desk.client() as runner:
        with runner.borrow(network=NetworkAccess(allow=(outside.open, METADATA))) as box:
            assert box.lent.network == NetworkAccess(allow=(outside.open, METADATA))
            assert box.exec(command, files={"net.py": NET}).stdout == "1 0 0\n"
            found = {f"{each.host}:{each.port}": (each.verdict, each.reason) for each in box.connections()}
            assert found == {
                outside.open: ("allowed", "done"),
                outside.shut: ("refused", "not_allowed"),
                METADATA: ("refused", "address"),
            }
        with runner.borrow() as box:
            assert box.exec(command, files={"net.py": NET}).stdout == "0 0 0\n"
            assert box.connections() == ()
        poor = NetworkAccess(allow=(outside.open,), shape=NetworkShape(resets_per_mib=1e6))
        with runner.borrow(network=poor) as box:
            assert box.exec(command[:4], files={"net.py": NET}).stdout == "0\n"
        with pytest.raises(ApiError, match="lets nobody ask for") as refused:
            runner.borrow(network=NetworkAccess(allow=(outside.shut,)))
        assert refused.value.problem.status == 403
        assert desk.ask("GET", "/v1/sandboxes").json()["items"] == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "TILTYARD_SANDBOX_PORT: needs TILTYARD_TOKEN_FILE, the file of the token that borrowers show"),
        ({"token_file": "/nowhere"}, "tiltyard runner: TILTYARD_TOKEN_FILE /nowhere cannot be read"),
    ],
)
def test_a_runner_without_a_token_lends_nothing(yard: Yard, settings: dict[str, str], told: str) -> None:
    runner = yard.processes.start(
        "services.runner", rollout_url=yard.rollout_url, node="n", sandbox_port="0", **settings
    )
    yard.processes.until(lambda: runner.process.poll() is not None, "it ends")
    assert runner.process.returncode == 1
    assert told in runner.log


def test_its_heartbeat_tells_how_well_its_sandboxes_are(desk: Desk) -> None:
    with closing(UnitOfWork(desk.database_url)) as work:

        def told() -> NodeHealth | None:
            with work() as session:
                (runner,) = views.fleet(session)
            return runner.health

        desk.processes.until(lambda: told() is not None, "a heartbeat tells")
        health = told()
    assert health is not None
    assert (health.state, health.reason, health.drifted) == ("closed", "", 0)


def test_its_openapi_document_says_what_each_request_takes(desk: Desk) -> None:
    document = desk.ask("GET", "/openapi.json").json()
    taken = {
        f"{method} {path}": content
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if (content := operation.get("requestBody", {}).get("content"))
    }
    assert {call: kind for call, content in taken.items() for kind in content} == {
        "post /v1/sandboxes": "application/json",
        "post /v1/sandboxes/{name}/lease": "application/json",
        "post /v1/sandboxes/{name}/exec": "application/json",
        "put /v1/sandboxes/{name}/files/{path}": "application/octet-stream",
    }
    refs = {part.split("'")[0] for part in str(document).split("#/components/schemas/")[1:]}
    assert {"SandboxOrder", "Renewal", "Command", "Problem"} <= refs <= set(document["components"]["schemas"])
