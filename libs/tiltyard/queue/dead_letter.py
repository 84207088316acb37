"""Jobs that died in the broker, brought to where people look.

Guarantees: a dead letter leaves the broker only after `keep` has returned.
Does not: put one back: a redrive makes new rows, since the old message may be stale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kombu.message import Message

from tiltyard.queue.topology import DEAD, channel_of, dead_queue, publishing_connection


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message, and why it died."""

    queue: str
    """The queue it died in."""
    reason: str
    """RabbitMQ's word: rejected, delivery_limit, expired, maxlen."""
    deaths: int
    headers: Mapping[str, Any]
    body: str
    """The message as text; bytes that are no UTF-8 are escaped."""


def drain_dead_letters(broker_url: str, keep: Callable[[DeadLetter], None], *, limit: int = 256) -> int:
    """Hand each dead letter to `keep`, which commits it to a table, then acknowledge it; how many.

    What `keep` raises ends the drain, and that letter stays in the broker. Raises kombu's errors for a
    broker that cannot be reached."""
    with publishing_connection(broker_url) as connection:
        channel = channel_of(connection)
        DEAD(channel).declare()
        queue = dead_queue()(channel)
        queue.declare()
        for drained in range(limit):
            message = queue.get(no_ack=False)
            if message is None:
                return drained
            keep(_letter(message))
            message.ack()
    return limit


def _letter(message: Message) -> DeadLetter:
    headers = message.headers or {}
    deaths = headers.get("x-death") or [{}]
    body = message.body or b""
    return DeadLetter(
        queue=str(deaths[0].get("queue", "")),
        reason=str(deaths[0].get("reason", "")),
        deaths=sum(int(death.get("count", 0)) for death in deaths),
        headers=headers,
        body=body if isinstance(body, str) else bytes(body).decode(errors="backslashreplace"),
    )
