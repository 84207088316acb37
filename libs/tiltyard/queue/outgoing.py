"""What waits to be published.

Guarantees: a topic or an id that waits already is not taken twice; the memory is bounded, the newest wins.
Does not: lock; its owner does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MOST_TOPICS = 10_000
MOST_IDS = 50_000
"""Per kind of job: what is dropped beyond costs latency, since its row is announced again."""


@dataclass(slots=True)
class Outgoing:
    """Topics, and ids by kind of job, in order of their arrival."""

    topics: dict[str, None] = field(default_factory=dict)
    jobs: dict[str, dict[str, None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.topics or self.jobs)

    def announce(self, topics: Iterable[str]) -> int:
        """Add topics; how many older ones were dropped."""
        return _add(self.topics, topics, MOST_TOPICS)

    def enqueue(self, kind: str, ids: Sequence[str]) -> int:
        """Add ids of one kind; how many older ones were dropped. No ids at all still asks for a look."""
        return _add(self.jobs.setdefault(kind, {}), ids, MOST_IDS)

    def take_back(self, unsent: "Outgoing") -> int:
        """Put what could not be sent before what came since; how many were dropped."""
        dropped = 0
        later = Outgoing(topics=self.topics, jobs=self.jobs)
        self.topics, self.jobs = unsent.topics, unsent.jobs
        dropped += self.announce(later.topics)
        for kind, ids in later.jobs.items():
            dropped += self.enqueue(kind, list(ids))
        return dropped


def _add(held: dict[str, None], new: Iterable[str], most: int) -> int:
    held.update(dict.fromkeys(new))
    surplus = len(held) - most
    for oldest in list(held)[: max(surplus, 0)]:
        del held[oldest]
    return max(surplus, 0)
