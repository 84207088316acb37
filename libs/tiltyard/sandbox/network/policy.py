"""What a box may reach, and how.

Guarantees: a `Network` that exists makes sense.
Does not: know whether a host exists or an address answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from math import isfinite
from typing import Self

from tiltyard.contracts.network import NetworkAccess
from tiltyard.sandbox.errors import InvalidNetwork

from .address import Range
from .host import address_of
from .record import Reason, refused
from .rule import Rule
from .shape import Shape

_RANGES = {
    "port": (1024, 65535),
    "connections": (1, 4096),
    "connections_per_second": (0.1, 10_000),
    "connections_in_all": (1, 1 << 30),
    "connection_bytes": (1, 1 << 50),
    "request_seconds": (0.05, 600),
    "connect_seconds": (0.05, 600),
    "idle_seconds": (0.05, 86_400),
}
_PLAIN = Shape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The hosts and ports that a box may reach; everything else is refused."""

    allow: Sequence[str]
    """rules: `HOST:PORT`, `*.DOMAIN:PORT`, `*:PORT`; see `Rule`"""
    private: Sequence[str] = ()
    """ranges (`10.2.0.0/16`) of private or otherwise special addresses that an allowed name may lead to; a
    cloud's metadata service stays refused"""
    shape: Shape = _PLAIN
    port: int = 3128
    """of the proxy, on the box's loopback"""
    connections: int = 64
    """at once; further ones wait to be accepted"""
    connections_per_second: float = 50.0
    connections_in_all: int = 10_000
    """in a box's life, each of which is one record"""
    connection_bytes: int = 1 << 30
    """each way, of one connection"""
    request_seconds: float = 10.0
    """until a request's head is whole"""
    connect_seconds: float = 10.0
    """to find a name's addresses, and then to connect"""
    idle_seconds: float = 300.0
    """without a byte either way"""
    rules: tuple[Rule, ...] = field(init=False)
    opened: tuple[Range, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Raises InvalidNetwork."""
        if isinstance(self.allow, str) or isinstance(self.private, str):
            raise InvalidNetwork("allow and private are lists of texts: ['example.org:443']")
        object.__setattr__(self, "rules", tuple(Rule.parse(text) for text in self.allow))
        object.__setattr__(self, "opened", tuple(_range(text) for text in self.private))
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not (isfinite(value) and low <= value <= high):
                raise InvalidNetwork(f"network {name} is {value}: give {low} to {high}")

    @classmethod
    def of(cls, access: NetworkAccess) -> Self:
        """What a task or an order has written. Raises InvalidNetwork."""
        return cls(allow=access.allow, shape=Shape(**access.shape.model_dump()))

    def check(self, host: str, port: int) -> None:
        """`host` is canonical. Raises Fault when no rule names it, before anything is looked up."""
        if not any(rule.allows(host, port) for rule in self.rules):
            shown = f"[{host}]" if address_of(host) and ":" in host else host
            allowed = ", ".join(map(str, self.rules)) or "nothing"
            raise refused(Reason.not_allowed, f"{shown}:{port} is not allowed; allowed here: {allowed}")

    def environment(self) -> dict[str, str]:
        """What commands of the box are told; both spellings, since programs differ in which they read."""
        proxy = f"http://127.0.0.1:{self.port}"
        told = {
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": proxy,
            "ALL_PROXY": proxy,
            "NO_PROXY": "localhost,127.0.0.1,::1",
        }
        return told | {name.lower(): value for name, value in told.items()}


def _range(text: str) -> Range:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidNetwork(f"private range {text!r}: {error}; write 10.2.0.0/16") from error
