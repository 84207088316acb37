"""Plain Celery no-ops on a broker: the peer that dispatch is measured beside.

Guarantees: a quorum queue, confirmed publishes, prefork with two children and prefetch 1, as a plain
deployment has it.
Does not: use our own queue settings."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from celery import Celery
from kombu.entity import Exchange, Queue

QUEUE = "tiltyard_bench_noop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noops:
    """No-ops a second."""

    publish_per_s: float
    """One after another, each confirmed."""
    drain_per_s: float
    """Start-up of the worker left out."""


def make_app(broker_url: str) -> Celery:
    """An app with one task that does nothing."""
    app = Celery("noop", broker=broker_url)
    app.conf.update(
        task_queues=[
            Queue(QUEUE, Exchange(QUEUE, type="topic"), QUEUE, queue_arguments={"x-queue-type": "quorum"})
        ],
        task_default_queue=QUEUE,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
    )
    app.task(name="noop")(_nothing)
    return app


def _nothing() -> None:
    return None


@contextmanager
def _worker(broker_url: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli.bench.noop", broker_url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def measure_noops(broker_url: str, count: int) -> Noops:
    """Publish `count` no-ops, then let two children drain them."""
    app = make_app(broker_url)
    with app.connection_for_write() as connection, connection.channel() as channel:
        queue = app.conf.task_queues[0](channel)
        queue.declare()
        queue.purge()
        started = time.perf_counter()
        with app.amqp.Producer(connection) as producer:
            for _ in range(count):
                app.send_task("noop", queue=QUEUE, producer=producer)
        published = time.perf_counter() - started
        with _worker(broker_url):
            return Noops(publish_per_s=count / published, drain_per_s=_drain(queue, count))


def _drain(queue: Queue, count: int) -> float:
    left = count
    while left == count:
        left = queue.queue_declare(passive=True).message_count
        time.sleep(0.01)
    first, started = left, time.perf_counter()
    while left:
        left = queue.queue_declare(passive=True).message_count
        time.sleep(0.01)
    return first / (time.perf_counter() - started)


def main() -> None:
    make_app(sys.argv[1]).worker_main(
        ["worker", "-c", "2", "-Q", QUEUE, "--loglevel=ERROR", "-n", "bench-noop"]
    )


if __name__ == "__main__":
    main()
