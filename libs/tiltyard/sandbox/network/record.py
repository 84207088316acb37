"""What a connection out of a box came to: one record each, for whoever keeps the trace.

Guarantees: every connection that reached the proxy ends in exactly one record, also when its box goes.
Does not: hold paths, headers or contents, which may be secrets."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

_MOST_TEXT = 255


class Verdict(StrEnum):
    """What was decided."""

    allowed = "allowed"
    """it was let out, and ended as connections do"""
    refused = "refused"
    """it was not let out, or was ended for what it did"""
    failed = "failed"
    """it was let out, or would have been, and something else broke it"""


class Reason(StrEnum):
    """Why."""

    done = "done"
    """both sides had said all"""
    not_allowed = "not_allowed"
    """no rule names this host and port"""
    odd_host = "odd_host"
    """the host is written as no client writes it: a number in hexadecimal, user information, a bad label"""
    address = "address"
    """the name leads to a private, link-local or otherwise special address"""
    bad_request = "bad_request"
    """no request that this proxy takes, or one that two readers would read differently"""
    host_mismatch = "host_mismatch"
    """the Host header names another host than the request"""
    slow = "slow"
    """the request was not whole in time"""
    idle = "idle"
    """nothing was carried for too long"""
    too_many_bytes = "too_many_bytes"
    """it carried more than one connection may"""
    too_many_connections = "too_many_connections"
    """the box has had all connections that it may have; this is its last record"""
    unknown_name = "unknown_name"
    """the name has no address"""
    unreachable = "unreachable"
    """no connection could be made"""
    bad_answer = "bad_answer"
    """the server answered what is no HTTP"""
    broken = "broken"
    """one side broke it off"""
    shaped = "shaped"
    """it was reset because the network's shape says so"""
    box_gone = "box_gone"
    """the box was given back, reset or destroyed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One connection, at its end."""

    box: str
    number: int
    """counts the connections of one box from 1"""
    host: str
    """lower case, without a trailing dot; as it was written when it is odd; empty when none was named"""
    port: int
    """0 when none was named"""
    address: str
    """the IP address that was connected to or refused; empty when it did not come so far"""
    verdict: Verdict
    reason: Reason
    detail: str
    """one line for people"""
    bytes_up: int
    """bytes of the client's that were passed on"""
    bytes_down: int
    started: float
    """seconds since 1970"""
    seconds: float


OnConnection = Callable[[Connection], None]


class Fault(Exception):
    """A connection's end other than the usual one."""

    def __init__(self, verdict: Verdict, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.verdict = verdict
        self.reason = reason
        self.detail = detail


def refused(reason: Reason, detail: str) -> Fault:
    return Fault(Verdict.refused, reason, detail)


def failed(reason: Reason, detail: str) -> Fault:
    return Fault(Verdict.failed, reason, detail)


class Account:
    """A connection while it lasts."""

    def __init__(self, box: str, number: int) -> None:
        self.host = ""
        self.port = 0
        self.address = ""
        self.bytes_up = 0
        self.bytes_down = 0
        self.touched = time.monotonic()
        """when anything was last carried"""
        self._box = box
        self._number = number
        self._record: Connection | None = None
        self._began = self.touched
        self._started = time.time()

    def carried(self, *, up: int = 0, down: int = 0) -> None:
        self.bytes_up += up
        self.bytes_down += down
        self.touched = time.monotonic()

    def close(self, verdict: Verdict, reason: Reason, detail: str) -> Connection:
        """The record; the first end stands, whatever follows it."""
        if self._record is None:
            self._record = self._describe(verdict, reason, detail)
        return self._record

    def _describe(self, verdict: Verdict, reason: Reason, detail: str) -> Connection:
        return Connection(
            box=self._box,
            number=self._number,
            host=self.host[:_MOST_TEXT],
            port=self.port,
            address=self.address,
            verdict=verdict,
            reason=reason,
            detail=detail[:_MOST_TEXT],
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            started=self._started,
            seconds=time.monotonic() - self._began,
        )
