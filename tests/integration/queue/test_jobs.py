"""Jobs through a real Celery worker in a process of its own, and what becomes of unreadable ones."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kombu.connection import Connection
from kombu.messaging import Producer

from tiltyard.queue import Publisher, open_publisher
from tiltyard.queue.dead_letter import DeadLetter, drain_dead_letters
from tiltyard.queue.topology import JOBS, job_queue
from tiltyard.testing.servers import RabbitMQ
from tiltyard.testing.servers.daemon import wait_until

pytestmark = pytest.mark.rabbitmq
WORKER = Path(__file__).with_name("worker_process.py")
WITHIN = 90.0
"""Seconds; a bound for a hung test, not a measurement."""


@pytest.fixture
def publisher(rabbitmq_url: str) -> Iterator[Publisher]:
    with open_publisher(rabbitmq_url, "") as publisher:
        yield publisher


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.touch()
    return path


@contextmanager
def worker(url: str, file: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker process, which must end with 0 on SIGTERM unless the test killed it."""
    log = file.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), url, str(file)], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
        if process.poll() is None:
            process.terminate()
        assert process.wait(WITHIN) in (0, -signal.SIGKILL), log.read_text()
    finally:
        process.kill()
        process.wait()


def written(file: Path) -> Counter[str]:
    return Counter(file.read_text().splitlines())


def test_jobs_reach_the_handler_of_their_kind(rabbitmq_url: str, publisher: Publisher, file: Path) -> None:
    publisher.enqueue("grade", ["1", "2"])
    publisher.enqueue("admit", [])
    with worker(rabbitmq_url, file):
        wait_until(lambda: written(file) == {"grade 1 2": 1, "admit ": 1}, "both jobs", within=WITHIN)
        publisher.enqueue("admit", ["3"])
        wait_until(lambda: "admit 3" in written(file), "a later job", within=WITHIN)


def test_a_failing_handler_ends_its_job_and_no_other(
    rabbitmq_url: str, publisher: Publisher, file: Path
) -> None:
    with worker(rabbitmq_url, file):
        for ids in (["fail"], ["1"], ["fail", "2"], ["3"]):
            publisher.enqueue("grade", ids)
            assert publisher.flush(WITHIN)
        expected = {"grade fail": 1, "grade 1": 1, "grade fail 2": 1, "grade 3": 1}
        wait_until(lambda: written(file) == expected, "four jobs, once each", within=WITHIN)
    assert written(file) == expected | {"stopping": 1}


def test_a_running_job_holds_no_message(rabbitmq_url: str, publisher: Publisher, file: Path) -> None:
    with worker(rabbitmq_url, file) as process:
        publisher.enqueue("grade", ["slow"])
        wait_until(lambda: "grade slow" in written(file), "the job to begin", within=WITHIN)
        time.sleep(1)  # the acknowledgement leaves with the next turn of the worker's loop, beside the job
        process.kill()
        process.wait()
    publisher.enqueue("grade", ["next"])
    assert publisher.flush(WITHIN)
    with worker(rabbitmq_url, file):  # a message that came back would stand before the next
        wait_until(lambda: "grade next" in written(file), "the next job", within=WITHIN)
    assert written(file)["grade slow"] == 1


def test_a_stopping_worker_says_so_and_finishes_what_runs(
    rabbitmq_url: str, publisher: Publisher, file: Path
) -> None:
    with worker(rabbitmq_url, file) as process:
        publisher.enqueue("grade", ["slow"])
        wait_until(lambda: "grade slow" in written(file), "the job to begin", within=WITHIN)
        process.terminate()
        process.wait(WITHIN)
    assert written(file) == {"grade slow": 1, "stopping": 1, "slow done": 1}


def test_a_worker_outlives_the_loss_of_its_connection(
    rabbitmq: RabbitMQ, rabbitmq_url: str, publisher: Publisher, file: Path
) -> None:
    with worker(rabbitmq_url, file):
        publisher.enqueue("grade", ["1"])
        wait_until(lambda: "grade 1" in written(file), "a job before", within=WITHIN)
        wait_until(lambda: rabbitmq.drop_connections() > 0, "connections to drop", within=WITHIN)
        publisher.enqueue("grade", ["2"])
        wait_until(lambda: "grade 2" in written(file), "a job after", within=WITHIN)


def test_two_workers_of_one_machine_share_the_jobs(
    rabbitmq_url: str, publisher: Publisher, file: Path
) -> None:
    with worker(rabbitmq_url, file), worker(rabbitmq_url, file):
        for number in range(20):
            publisher.enqueue("grade", [str(number)])
            assert publisher.flush(WITHIN)
        expected = {f"grade {number}": 1 for number in range(20)}
        wait_until(lambda: written(file) == expected, "each job once", within=WITHIN)


def test_an_unreadable_job_becomes_a_dead_letter(rabbitmq_url: str, publisher: Publisher, file: Path) -> None:
    publisher.enqueue("grade", ["1"])
    assert publisher.flush(WITHIN)
    send_raw(rabbitmq_url, task="tiltyard.unknown")
    letters: list[DeadLetter] = []
    with worker(rabbitmq_url, file):
        wait_until(lambda: "grade 1" in written(file), "the good job", within=WITHIN)
        wait_until(lambda: drain_dead_letters(rabbitmq_url, letters.append) > 0, "a letter", within=WITHIN)
    (letter,) = letters
    assert (letter.queue, letter.reason) == (job_queue("grade").name, "rejected")
    assert letter.headers["task"] == "tiltyard.unknown"
    assert json.loads(letter.body)[0] == ["content"]


def test_a_letter_that_could_not_be_kept_stays(rabbitmq_url: str, publisher: Publisher, file: Path) -> None:
    publisher.enqueue("grade", ["1"])
    assert publisher.flush(WITHIN)
    send_raw(rabbitmq_url, task="tiltyard.unknown")
    letters: list[DeadLetter] = []

    def broken(letter: DeadLetter) -> None:
        letters.append(letter)
        raise OSError("the table is away")

    def tried() -> bool:
        try:
            drain_dead_letters(rabbitmq_url, broken)
        except OSError:
            return True
        return False

    with worker(rabbitmq_url, file):
        wait_until(tried, "a letter", within=WITHIN)
    assert drain_dead_letters(rabbitmq_url, letters.append) == 1
    assert letters[0].body == letters[1].body
    assert drain_dead_letters(rabbitmq_url, letters.append) == 0


def send_raw(url: str, *, task: str) -> None:
    """Publish a message in Celery's protocol that no worker of ours has a handler for."""
    with Connection(url) as connection:
        Producer(connection.channel()).publish(
            [["content"], {}, {}],
            exchange=JOBS.name,
            routing_key="grade",
            serializer="json",
            headers={"lang": "py", "task": task, "id": "raw", "root_id": "raw"},
        )
