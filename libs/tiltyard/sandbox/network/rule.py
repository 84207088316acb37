"""One line of an allow-list: a host, or every name below one, and a port."""

from dataclasses import dataclass
from typing import Self

from tiltyard.sandbox.errors import InvalidNetwork

from .host import OddHost, address_of, split

_ANY = "*"
_BELOW = "*."


@dataclass(frozen=True, slots=True)
class Rule:
    """`example.org:443` that name alone · `*.example.org:443` every name below it, at any depth, and not
    itself · `*:443` every name · `[2001:db8::1]:443` an address, which no wildcard covers."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidNetwork."""
        try:
            if text.startswith("*:"):
                return cls(_ANY, split(f"any{text[1:]}")[1])
            host, port = split(text.removeprefix(_BELOW))
        except OddHost as error:
            raise InvalidNetwork(f"rule {text!r}: {error}; write HOST:PORT or *.DOMAIN:PORT") from error
        if not text.startswith(_BELOW):
            return cls(host, port)
        if address_of(host) or "." not in host:
            raise InvalidNetwork(f"rule {text!r}: a wildcard stands before a domain of two labels or more")
        return cls(_BELOW + host, port)

    def allows(self, host: str, port: int) -> bool:
        """`host` is canonical."""
        if port != self.port:
            return False
        if self.host == _ANY:
            return address_of(host) is None
        if self.host.startswith(_BELOW):
            return host.endswith(self.host[1:])
        return host == self.host

    def covers(self, other: "Rule") -> bool:
        """Whether this allows whatever the other one does."""
        if other.port != self.port:
            return False
        if self.host == _ANY:
            return other.host.startswith(_ANY) or address_of(other.host) is None
        if self.host.startswith(_BELOW):
            return other.host.endswith(self.host[1:])
        return self.host == other.host

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
