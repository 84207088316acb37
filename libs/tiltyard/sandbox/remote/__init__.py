"""Other people's fleets of sandboxes, behind the same calls as our own.

Guarantees: what a provider cannot enforce is refused unless accepted by name; a sandbox whose creation was
never answered is found and destroyed; no key appears in a message or a log of ours.
Does not: trust an acknowledgement. A sandbox is destroyed once its provider no longer knows it."""

from tiltyard.sandbox.capability import Capability, Demand

from .agent_sandbox.backend import AgentSandboxBackend
from .e2b.backend import E2BBackend

__all__ = ["AgentSandboxBackend", "Capability", "Demand", "E2BBackend"]
