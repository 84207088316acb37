"""The evaluator on RabbitMQ: Celery's pool threads hand their batches to one event loop.

Guarantees: the same jobs as `worker`, on one loop and one set of warm pools a process.
Does not: keep a message while its work runs: it is acknowledged before, since the rows are the truth."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from services.evaluator.jobs import Desk
from services.evaluator.worker import GRACE_SECONDS
from tiltyard.queue.jobs import celery_app, on_job, run_worker

T = TypeVar("T")
CONCURRENCY = 8
"""Batches handled at once."""


def serve(opened: Callable[[], AbstractAsyncContextManager[list[Desk[Any]]]], broker_url: str) -> None:
    """Work until SIGTERM; blocks."""
    app = celery_app(broker_url)
    with _loop_in_thread() as loop:
        context = opened()
        desks = _call(loop, context.__aenter__()).result()
        keepers = [_call(loop, desk.keep_leases()) for desk in desks]

        def stop() -> None:
            _leave(loop, desks)

        try:
            for desk in desks:
                on_job(app, desk.kind.name, lambda ids, desk=desk: _call(loop, _handle(desk)).result())
            kinds = [desk.kind.name for desk in desks]
            run_worker(app, kinds=kinds, concurrency=CONCURRENCY, on_stop=stop)
        finally:
            for leaving in _leave(loop, desks):
                leaving.result()
            for keeper in keepers:
                keeper.cancel()
            _call(loop, context.__aexit__(None, None, None)).result()


def _leave(loop: asyncio.AbstractEventLoop, desks: list[Desk[Any]]) -> list[Future[None]]:
    """Let what is under way end, so that the handlers that wait for it return."""
    return [_call(loop, desk.leave(GRACE_SECONDS)) for desk in desks]


async def _handle(desk: Desk[Any]) -> None:
    """Claim and finish what waits, batch after batch."""
    while started := await desk.pull():
        await asyncio.wait(started)


def _call(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, loop)


@contextmanager
def _loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="evaluator loop")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
