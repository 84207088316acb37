"""What an evaluator is made of.

Guarantees: everything that is opened here is closed here, whatever ends it.
Does not: listen; `worker` or `celery` does."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from services.evaluator.admitter import Admitter
from services.evaluator.boxes import Boxes
from services.evaluator.grader import Grader
from services.evaluator.jobs import BATCH, Desk
from services.evaluator.metrics import Metrics
from services.evaluator.settings import EvaluatorSettings
from tiltyard.objects import open_store
from tiltyard.objects.crew import Crew
from tiltyard.queue import open_publisher
from tiltyard.store.database import AsyncUnitOfWork, new_id
from tiltyard.telemetry.setup import Telemetry

ADMISSIONS = 4
"""Tasks that are tried at once; each takes several sandboxes."""
RECORDS = 4
"""Threads that read and write records."""


@asynccontextmanager
async def desks(settings: EvaluatorSettings, telemetry: Telemetry) -> AsyncIterator[list[Desk[Any]]]:
    """The desks of one process: gradings and admissions. Raises `SandboxUnavailable`, naming the cure."""
    holder = f"evaluator-{settings.node}-{os.getpid()}-{new_id()[-8:]}"
    metrics = Metrics(telemetry.metrics)
    work = AsyncUnitOfWork(settings.database_url, application="tiltyard-evaluator", connections=6)
    boxes = Boxes(settings.sandboxes, permission=settings.permission)
    with (
        open_publisher(settings.broker_url, settings.database_url) as publisher,
        Crew(RECORDS, name="records") as crew,
    ):
        try:
            await boxes.prove()
            grader = Grader(
                work=work,
                objects=open_store(settings.objects_url),
                boxes=boxes,
                publisher=publisher,
                recorder=telemetry.recorder,
                metrics=metrics,
                holder=holder,
                crew=crew,
            )
            admitter = Admitter(work=work, boxes=boxes, publisher=publisher, metrics=metrics, holder=holder)
            yield [Desk(grader, 2 * settings.sandboxes + 2 * BATCH), Desk(admitter, ADMISSIONS)]
        finally:
            await boxes.close()
            await work.close()
