"""What a sandbox may reach, as tasks and orders write it: nothing, or hosts by name.

Guarantees: a rule has a host and a port.
Does not: read rules as the engine does (`tiltyard.sandbox.network.Rule`), or grant anything: a deployment
says which hosts may be asked for at all."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from tiltyard.contracts.document import Document

NONE = "none"
_MOST_PORT = 65_535


def _rule(text: str) -> str:
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= _MOST_PORT
    if not (host and colon and is_port) or any(sign in host for sign in "/@ ") or not text.isprintable():
        raise ValueError(f"{text!r} is no rule; write HOST:PORT, *.DOMAIN:PORT or *:PORT")
    return text


Rule = Annotated[str, Field(max_length=300), AfterValidator(_rule)]


class NetworkShape(Document):
    """How poor the network is; see `tiltyard.sandbox.Shape`. Zeros: as good as it is."""

    kib_per_second: float = Field(default=0.0, ge=0, le=1e6)
    """KiB a second, each way, shared by the sandbox's connections."""
    latency_ms: float = Field(default=0.0, ge=0, le=60_000)
    """Added to every round trip."""
    resets_per_mib: float = Field(default=0.0, ge=0, le=1e6)
    """Connections that are reset, on average, for each MiB carried."""
    stalls_per_mib: float = Field(default=0.0, ge=0, le=1e6)
    """Pauses of `stall_seconds`, on average, for each MiB carried: what lost packets look like."""
    stall_seconds: float = Field(default=0.0, ge=0, le=600)
    seed: int = Field(default=0, ge=0, lt=2**31)


class NetworkAccess(Document):
    """Named hosts and ports, through a proxy that records each connection."""

    allow: tuple[Rule, ...] = Field(min_length=1, max_length=64)
    """`example.org:443`, `*.example.org:443` (every name below it), `*:443` (every name)."""
    shape: NetworkShape = NetworkShape()


def _kind(value: object) -> str | None:
    if value == NONE:
        return NONE
    return "hosts" if isinstance(value, dict | NetworkAccess) else None


NetworkDemand = Annotated[
    Annotated[Literal["none"], Tag(NONE)] | Annotated[NetworkAccess, Tag("hosts")],
    Discriminator(
        _kind,
        custom_error_type="network",
        custom_error_message="give 'none', or hosts as {'allow': ['example.org:443']}",
    ),
]


def told(demand: NetworkDemand) -> str:
    """One line for people: `none`, or the hosts and what is imposed."""
    if isinstance(demand, str):
        return demand
    shape = demand.shape.model_dump(exclude_defaults=True)
    imposed = ", ".join(f"{name} {value:g}" for name, value in shape.items())
    return ", ".join(demand.allow) + (f" ({imposed})" if imposed else "")
