"""The Celery app: each setting here has cost somebody work or a night."""

from typing import Any

import pytest
from celery import Celery
from celery.backends.base import DisabledBackend

from tiltyard.queue.jobs import celery_app
from tiltyard.queue.topology import DEAD, KINDS, dead_queue, job_queues


@pytest.fixture
def app() -> Celery:
    return celery_app("amqp://guest:guest@127.0.0.1:1//")


def test_messages_are_acknowledged_at_once_and_nothing_keeps_results(app: Celery) -> None:
    assert app.conf.task_acks_late is False
    assert app.conf.task_ignore_result is True
    assert isinstance(app.backend, DisabledBackend)


def test_only_json_is_read(app: Celery) -> None:
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"


def test_nothing_is_made_behind_our_back(app: Celery) -> None:
    assert app.conf.task_create_missing_queues is False
    assert app.conf.worker_enable_remote_control is False
    assert app.conf.worker_send_task_events is False
    assert app.conf.task_send_sent_event is False
    assert app.conf.task_always_eager is False


def test_each_kind_has_a_bounded_quorum_queue_that_loses_nothing(app: Celery) -> None:
    assert {queue.routing_key for queue in app.conf.task_queues} == set(KINDS)
    queues: list[Any] = job_queues()
    for queue in queues:
        arguments = queue.queue_arguments
        assert queue.exchange.type == "topic"
        assert arguments["x-queue-type"] == "quorum"
        assert arguments["x-delivery-limit"] > 0
        assert arguments["x-dead-letter-exchange"] == DEAD.name
        assert (arguments["x-dead-letter-strategy"], arguments["x-overflow"]) == (
            "at-least-once",
            "reject-publish",
        )


def test_dead_letters_end_in_a_quorum_queue_bound_to_everything() -> None:
    queue: Any = dead_queue()
    assert (queue.exchange.name, queue.routing_key) == (DEAD.name, "#")
    assert queue.queue_arguments == {"x-queue-type": "quorum"}
