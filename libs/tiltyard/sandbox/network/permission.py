"""Which hosts a deployment lets anybody ask for: who writes a task or borrows a box does not decide alone.

Guarantees: what is granted is covered, rule by rule, by what the deployment names; where it names none,
nothing is granted.
Does not: look at addresses. The proxy does, for each connection."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from tiltyard.contracts.network import NetworkAccess
from tiltyard.sandbox.errors import NetworkRefused

from .policy import Network
from .rule import Rule

CONNECTIONS = 500
"""In the life of a box whose network was asked for by strangers: each is a span of its trace."""


@dataclass(frozen=True, slots=True)
class Permission:
    """Rules that others' rules must be covered by."""

    hosts: tuple[Rule, ...] = ()
    private: tuple[str, ...] = ()
    """ranges of special addresses that the hosts may lead to, such as those of a mirror of your own"""

    @classmethod
    def parse(cls, hosts: Sequence[str], private: Sequence[str] = ()) -> Self:
        """Raises InvalidNetwork."""
        network = Network(allow=hosts, private=private)
        return cls(network.rules, tuple(private))

    def grant(self, access: NetworkAccess) -> Network:
        """Raises NetworkRefused, InvalidNetwork."""
        network = replace(Network.of(access), private=self.private, connections_in_all=CONNECTIONS)
        missing = [str(rule) for rule in network.rules if not any(mine.covers(rule) for mine in self.hosts)]
        if missing:
            mine = ", ".join(map(str, self.hosts)) or "no host"
            raise NetworkRefused(
                f"this deployment lets nobody ask for {', '.join(missing)}, but for {mine}; its operator "
                "names hosts in TILTYARD_NETWORK_ALLOW"
            )
        return network


NOWHERE = Permission()
