"""Dead letters of the broker, brought to the table where people look.

Guarantees: a letter leaves the broker after its row is committed; a broker or a database that is away is
asked again later.
Does not: act on a letter: its rows are announced again by themselves."""

import threading

from kombu.exceptions import OperationalError as BrokerAway

from tiltyard.queue.dead_letter import DeadLetter, drain_dead_letters
from tiltyard.store import dead_letters
from tiltyard.store.batch import UNAVAILABLE
from tiltyard.store.database import UnitOfWork
from tiltyard.telemetry.events import event_logger

log = event_logger("evaluator")
EVERY_SECONDS = 30.0


class Collector:
    """A thread that drains them until it is closed."""

    def __init__(self, broker_url: str, database_url: str, *, every: float = EVERY_SECONDS) -> None:
        self._broker_url, self._every = broker_url, every
        self._work = UnitOfWork(database_url, application="tiltyard-dead-letters", connections=1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dead letters", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(self._every):
            try:
                if drained := drain_dead_letters(self._broker_url, self._keep):
                    log.warning("queue.dead_letters", letters=drained)
            except (*UNAVAILABLE, BrokerAway) as error:
                log.warning("queue.dead_letters_undrained", error=str(error))

    def _keep(self, letter: DeadLetter) -> None:
        with self._work() as session:
            dead_letters.keep(
                session, queue=letter.queue, reason=letter.reason, headers=letter.headers, body=letter.body
            )

    def close(self) -> None:
        self._closed.set()
        self._thread.join(2.0)
        self._work.close()
