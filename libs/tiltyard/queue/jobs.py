"""Jobs for the evaluator, as Celery tasks over RabbitMQ.

Guarantees: a message is acknowledged before its handler runs, so that long work holds no message; a message
that nobody can read becomes a dead letter.
Does not: retry a handler or keep its result: the rows are claimed under a lease, and announced again.

Source of the settings: Celery documentation, "Configuration and defaults" and "Using RabbitMQ"; celery issues
#9462 (missing queues), #6760 (acknowledgement timeouts), kombu issue #2531 (exclusive control queues)."""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from celery import Celery, signals
from celery.exceptions import SecurityWarning
from kombu.messaging import Producer

from tiltyard.contracts.messages import GRADE, JobBatch
from tiltyard.queue.topology import CONFIRM_SECONDS, JOBS, job_queue, job_queues

SOFT_SHUTDOWN_SECONDS = 30


def job_name(kind: str) -> str:
    """Name of the Celery task of a kind of job."""
    return f"tiltyard.{kind}"


def celery_app(broker_url: str) -> Celery:
    """An app without a result backend, without ETA, without events, with one quorum queue per kind of job."""
    app = Celery("tiltyard", broker=broker_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_queues=job_queues(),
        task_default_queue=job_queue(GRADE).name,
        task_default_queue_type="quorum",
        task_default_exchange=JOBS.name,
        task_default_exchange_type="topic",
        task_default_routing_key=GRADE,
        task_create_missing_queues=False,
        task_acks_late=False,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_publish_retry=False,
        task_send_sent_event=False,
        worker_send_task_events=False,
        worker_prefetch_multiplier=1,
        worker_detect_quorum_queues=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_soft_shutdown_timeout=SOFT_SHUTDOWN_SECONDS,
        worker_enable_soft_shutdown_on_idle=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={"confirm_publish": True, "connect_timeout": CONFIRM_SECONDS},
        broker_heartbeat=10,
    )
    return app


def send_job(app: Celery, producer: Producer, batch: JobBatch) -> None:
    """Publish one batch to its queue, confirmed; raises what kombu and py-amqp raise."""
    app.send_task(
        job_name(batch.kind),
        args=[batch.model_dump(mode="json")],
        producer=producer,
        exchange=JOBS.name,
        routing_key=batch.kind,
        ignore_result=True,
        mandatory=True,
        retry=False,
        timeout=CONFIRM_SECONDS,
        confirm_timeout=CONFIRM_SECONDS,
    )


def on_job(app: Celery, kind: str, handler: Callable[[tuple[str, ...]], None]) -> None:
    """Run `handler(ids)` in a thread of the pool for each batch of this kind.

    What it raises is logged and ends the job, no more: its rows keep their lease until that expires."""

    @app.task(name=job_name(kind), shared=False)
    def job(document: dict[str, Any]) -> None:
        handler(JobBatch.model_validate(document).ids)


def run_worker(
    app: Celery, *, kinds: Sequence[str], concurrency: int, on_stop: Callable[[], object] = lambda: None
) -> int:
    """Consume jobs until SIGTERM or SIGINT; blocks the main thread. Returns the exit status.

    `on_stop` runs as soon as the signal arrives: running handlers are waited for, so it should end them."""

    def stopping(**_: object) -> None:
        on_stop()

    signals.worker_shutting_down.connect(stopping)
    worker = app.Worker(
        hostname=f"evaluator-{uuid4().hex}@%h",
        pool="threads",
        concurrency=concurrency,
        queues=[job_queue(kind).name for kind in kinds],
        loglevel=logging.WARNING,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # sandboxes need root, and only JSON is accepted
        worker.start()
    return worker.exitcode or 0
