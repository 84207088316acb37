"""The console, attacked and used."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from services.registry.console.session import COOKIE, mint
from tests.integration.registry.documents import TOKEN, submission
from tests.integration.registry.episodes import attempt, grading, keep
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.rows import Rows, addition

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg/onload=alert(3)>{{7*7}}</pre>"


@pytest.fixture
def browser(make_client: Callable[..., TestClient]) -> TestClient:
    """A browser that has opened the login link."""
    client = make_client(token=None)
    client.base_url = "http://localhost"
    assert client.get("/console/login", params={"token": TOKEN}).status_code == 200
    return client


class Found(HTMLParser):
    """Elements that could run something, and attributes that could."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.handlers: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name in ("style", "srcdoc")]


def harmless(page: str) -> None:
    found = Found()
    found.feed(page)
    assert found.scripts == ["/console/static/live.js"]
    assert found.handlers == []
    assert "img" not in found.tags or page.count("<img") == 1  # the mark in the header
    assert "49" not in re.findall(r"7\*7|\b49\b", page)


def test_without_the_cookie_every_page_is_the_login_page(make_client: Callable[..., TestClient]) -> None:
    client = make_client(token=None)
    for path in ("/console", "/console/runs/x", "/console/tasks", "/console/rollouts/x", "/console/fleet"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert "Tiltyard console" in answer.text
    assert client.get("/console/static/style.css").status_code == 200
    assert client.get("/console/static/..%2Fsession.py").status_code == 404


def test_the_login_link_gives_a_cookie_that_scripts_and_other_sites_cannot_use(
    make_client: Callable[..., TestClient],
) -> None:
    client = make_client(token=None)
    refused = client.get("/console/login", params={"token": TOKEN[:-1] + "!"})
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    given = client.get("/console/login", params={"token": TOKEN})
    cookie = given.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/console"):
        assert part in cookie
    assert TOKEN not in cookie
    assert TOKEN not in given.text


def test_the_cookie_opens_no_part_of_the_api(browser: TestClient) -> None:
    assert browser.get("/console").status_code == 200
    assert browser.get("/v1/tasks").status_code == 401


@pytest.mark.parametrize(
    "value",
    ["", "1.x", mint(TOKEN, now=0), mint("another token", now=2e9), "9999999999." + "0" * 64, "٣.x"],
)
def test_a_forged_or_stale_cookie_is_refused(make_client: Callable[..., TestClient], value: str) -> None:
    client = make_client(token=None)
    answer = client.get("/console", headers=[(b"Cookie", f"{COOKIE}={value}".encode())])
    assert answer.status_code == 401


def test_every_page_carries_the_strict_policy(browser: TestClient) -> None:
    for path in ("/console", "/console/tasks", "/console/rollouts", "/console/fleet", "/console/login"):
        policy = browser.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


def test_what_a_policy_wrote_and_its_tests_printed_is_shown_and_runs_nowhere(
    browser: TestClient, rows: Rows, objects: Any
) -> None:
    claim, _ = rows.produced(rows.run(addition(instruction=ATTACK)))
    record = attempt(claim, ATTACK, reason=ATTACK)
    keep(rows, objects, claim, record, grading(claim, stdout=ATTACK, detail=ATTACK))
    page = browser.get(f"/console/rollouts/{claim.rollout_id}")
    assert page.status_code == 200
    assert page.text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 5
    harmless(page.text)


def test_a_hostile_task_report_and_reason_are_shown_and_run_nowhere(
    browser: TestClient, api: TestClient, work: UnitOfWork
) -> None:
    spec = submission(
        instruction=ATTACK, lineage={ATTACK[:50]: ATTACK}, environment={"files": {"a.txt": ATTACK}}
    )
    version = api.post("/v1/tasks", json=spec).json()["id"]
    with work() as session:
        session.execute(text("UPDATE admissions SET report = :r, state = 'DONE'"), {"r": ATTACK})
    page = browser.get(f"/console/tasks/{version}")
    assert page.status_code == 200
    assert page.text.count("&lt;script&gt;alert(1)") >= 3
    harmless(page.text)
    listed = browser.get("/console/tasks", params={"name": ATTACK, "taskset": ATTACK})
    assert listed.status_code == 200
    harmless(listed.text)


def test_a_hostile_run_reason_is_shown_and_runs_nowhere(browser: TestClient, rows: Rows) -> None:
    seeded = rows.run()
    with rows.work() as session:
        session.execute(text("UPDATE runs SET state = 'FAILED', reason = :r"), {"r": ATTACK})
    page = browser.get(f"/console/runs/{seeded.run_id}")
    assert page.status_code == 200
    assert "&lt;script&gt;" in page.text
    harmless(page.text)


def test_a_run_page_draws_the_reward_curve_and_names_discrepancies(browser: TestClient, rows: Rows) -> None:
    seeded = rows.run()
    for version in range(4):
        ids = rows.group(seeded, 2)
        with rows.work() as session:
            for rollout_id, reward in zip(ids, (version / 4, 1.0), strict=True):
                session.execute(
                    text("UPDATE rollouts SET reward = :r, oldest_version = :v WHERE id = :i"),
                    {"r": reward, "v": version, "i": rollout_id},
                )
    page = browser.get(f"/console/runs/{seeded.run_id}").text
    points = re.findall(r'class="curve" points="([^"]+)"', page)
    assert [len(p.split()) for p in points] == [4]
    assert "version 3: 0.875 over 2 valid rollouts" in page
    assert "groups planned = groups" in page  # the rows were made behind the dispatcher's back
    assert "data-live" in page


def test_the_overview_and_the_fleet_show_what_there_is(browser: TestClient, rows: Rows) -> None:
    rows.aboard(rows.run(), 3, incarnation="runner-one")
    assert 'href="/console/runs/' in browser.get("/console").text
    fleet = browser.get("/console/fleet").text
    assert "runner-one" in fleet
    assert "3 / 1000" in fleet


def test_lists_lead_on_by_links(browser: TestClient, rows: Rows) -> None:
    rows.group(rows.run(), 60)
    page = browser.get("/console/rollouts", params={"run": "r"}).text
    (following,) = re.findall(r'href="(/console/rollouts\?[^"]+cursor=[^"]+)"', page)
    rest = browser.get(following.replace("&amp;", "&")).text
    seen = set(re.findall(r"/console/rollouts/([0-9a-f-]{36})", page + rest))
    assert len(seen) == 60


def test_an_unknown_page_is_a_problem(browser: TestClient) -> None:
    assert browser.get("/console/rollouts/none").status_code == 404
    assert browser.get("/console/tasks/none").status_code == 404
