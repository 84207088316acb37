"""The HTTP client of the registry's API, typed by the contracts.

Guarantees: a request that may be repeated is repeated when the connection breaks or the registry is busy; a
POST carries an Idempotency-Key, so that a repetition does nothing twice.
Does not: cache."""

from tiltyard.client.client import Client
from tiltyard.client.errors import ApiError, ClientError, Unreachable

__all__ = ["ApiError", "Client", "ClientError", "Unreachable"]
