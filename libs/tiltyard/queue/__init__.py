"""Hints and jobs: messages that mean "look at your rows", over RabbitMQ or Postgres.

Guarantees: a broken broker neither blocks nor fails whoever publishes or listens.
Does not: lose work with a message, since no message is the only record of anything: rows are, and whoever
owns them announces them again. Announce after the commit, not before."""

from tiltyard.queue.listener import Ear
from tiltyard.queue.opening import open_listener, open_publisher
from tiltyard.queue.publisher import Publisher, PublisherStats

__all__ = ["Ear", "Publisher", "PublisherStats", "open_listener", "open_publisher"]
