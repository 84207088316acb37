"""Ways out of a box: named hosts and ports, through a proxy of this process, each connection recorded.

Guarantees: the box itself has loopback alone; whatever leaves it goes through a listener that is held
outside, to an address that was checked after its name was resolved.
Does not: look inside what is encrypted. An allowed host can pass on whatever it is sent."""

from .gate import Gate, attached
from .permission import NOWHERE, Permission
from .policy import Network
from .record import Connection, OnConnection, Reason, Verdict
from .resolver import Resolver, SystemResolver
from .rule import Rule
from .shape import Shape
from .spans import connection_spans

__all__ = [
    "NOWHERE",
    "Connection",
    "Gate",
    "Network",
    "OnConnection",
    "Permission",
    "Reason",
    "Resolver",
    "Rule",
    "Shape",
    "SystemResolver",
    "Verdict",
    "attached",
    "connection_spans",
]
