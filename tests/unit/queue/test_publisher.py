"""The publisher against a sender that fails as told: nothing is sent twice without need, nothing is lost."""

from collections.abc import Sequence

import pytest

from tiltyard.contracts.messages import JobBatch
from tiltyard.queue.publisher import IDS_IN_A_JOB, LONGEST_TOPIC, Publisher, Rejected

WITHIN = 60.0


class Scripted:
    """A sender whose job number n raises what the script says."""

    def __init__(self, *script: Exception | None) -> None:
        self._script = list(script)
        self.hints: list[str] = []
        self.jobs: list[JobBatch] = []

    def connect(self) -> None:
        """Always works."""

    def send_hints(self, topics: Sequence[str]) -> None:
        self.hints += topics

    def send_job(self, batch: JobBatch) -> None:
        failure = self._script.pop(0) if self._script else None
        if failure is not None:
            raise failure
        self.jobs.append(batch)

    def close(self) -> None:
        """Nothing is open."""


def test_many_ids_go_in_batches() -> None:
    sender = Scripted()
    with Publisher(sender) as publisher:
        publisher.enqueue("grade", (str(number) for number in range(600)))
        assert publisher.flush(WITHIN)
    assert [len(job.ids) for job in sender.jobs] == [IDS_IN_A_JOB, IDS_IN_A_JOB, 600 - 2 * IDS_IN_A_JOB]
    assert [one for job in sender.jobs for one in job.ids] == [str(number) for number in range(600)]


def test_after_a_broken_connection_only_what_was_not_sent_is_sent() -> None:
    sender = Scripted(None, ConnectionResetError("gone"))
    with Publisher(sender) as publisher:
        publisher.announce("policy")
        publisher.enqueue("grade", (str(number) for number in range(600)))
        assert publisher.flush(WITHIN)
        assert publisher.stats().failed == 1
        assert publisher.stats().dropped == 0
        assert publisher.stats().connects == 2
    assert sender.hints == ["policy"]
    assert sorted(int(one) for job in sender.jobs for one in job.ids) == list(range(600))


def test_a_refused_job_is_dropped_and_counted_and_the_next_goes_on() -> None:
    sender = Scripted(Rejected("full"))
    with Publisher(sender) as publisher:
        publisher.enqueue("grade", (str(number) for number in range(IDS_IN_A_JOB + 1)))
        assert publisher.flush(WITHIN)
        stats = publisher.stats()
    assert (stats.sent, stats.failed, stats.dropped, stats.connects) == (1, 1, IDS_IN_A_JOB, 1)
    assert [job.ids for job in sender.jobs] == [(str(IDS_IN_A_JOB),)]


def test_ids_of_any_type_become_text() -> None:
    sender = Scripted()
    with Publisher(sender) as publisher:
        publisher.enqueue("admit", [7])  # type: ignore[list-item]
        assert publisher.flush(WITHIN)
    assert sender.jobs[0].ids == ("7",)


@pytest.mark.parametrize("topic", ["", "x" * (LONGEST_TOPIC + 1)])
def test_a_topic_out_of_bounds_is_the_callers_fault(topic: str) -> None:
    with Publisher(Scripted()) as publisher, pytest.raises(ValueError, match="must have 1 to"):
        publisher.announce(topic)


def test_a_closed_publisher_takes_no_more_and_says_nothing() -> None:
    publisher = Publisher(Scripted())
    publisher.close()
    publisher.announce("policy")
    assert not publisher.flush(0.05)
