"""The E2B backend."""

import os
import socket
from collections.abc import Callable, Collection, Mapping

from tiltyard.sandbox.capability import Capability, Demand, refuse_unenforced
from tiltyard.sandbox.errors import ImageFault, SandboxUnavailable
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.remote.api import Api
from tiltyard.sandbox.remote.fleet import Owner
from tiltyard.sandbox.remote.supply import RemoteSupply

from .fleet import E2BFleet

_SIZED = "a machine's size is its template's: it must not be above the limit"
_ABLE: Mapping[Demand, Capability] = {
    Demand.memory: Capability(True, _SIZED),
    Demand.cpus: Capability(True, _SIZED),
    Demand.disk: Capability(True, _SIZED),
    Demand.pause: Capability(
        True, "its whole machine is kept, and resumed; while paused it never ends by itself"
    ),
    Demand.kernel: Capability(True, "Firecracker: a machine and a kernel of its own"),
    Demand.streaming: Capability(True, "envd sends output as it comes"),
    Demand.pids: Capability(False, "envd sets no limit; a fork bomb ends with its machine's memory"),
    Demand.inodes: Capability(False, "a file system has as many as its template's disk"),
    Demand.cpu_time: Capability(False, "counted for one process alone (ulimit -t), not for all together"),
    Demand.leftovers: Capability(False, "envd ends the command alone; what it started lives on in the box"),
    Demand.counters: Capability(False, "envd tells neither CPU time nor memory of a command"),
    Demand.descriptors: Capability(False, "it is another machine"),
    Demand.background: Capability(False, "one command at a time is spoken to"),
    Demand.ports: Capability(False, "its proxy carries HTTP to a public name, and no sockets"),
    Demand.snapshots: Capability(False, "its snapshots stay with the provider, as templates"),
}


class E2BBackend:
    """Sandboxes of E2B, or of whoever speaks its API: a pool's image is a template's name."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        owner: str | None = None,
        accept: Collection[Demand] = (),
        internet: bool = False,
        life_seconds: float = 300.0,
        sweep_seconds: float = 30.0,
        requests_per_second: float = 5.0,
        timeout_seconds: float = 30.0,
        domain: str | None = None,
        api_url: str | None = None,
        sandbox_url: str | None = None,
    ) -> None:
        """None of `api_key`, `domain`, `api_url`, `sandbox_url`: as for E2B's own client E2B_API_KEY,
        E2B_DOMAIN (e2b.app), E2B_API_URL, E2B_SANDBOX_URL. `owner`: a name that one living process uses at
        a time, so that the next one destroys what it left; None: this process alone. A sandbox ends
        `life_seconds` after its process was last heard of.

        Raises CapabilityRefused, SandboxUnavailable without a key."""
        refuse_unenforced("E2B", _ABLE, accept)
        key = api_key or os.environ.get("E2B_API_KEY", "")
        if not key:
            raise SandboxUnavailable("E2B needs a key: set E2B_API_KEY or give api_key")
        self._key = key
        self._owner = Owner.new(owner or f"{socket.gethostname()}-{os.getpid()}")
        self._keys: dict[str, str] = {}
        self._accept = frozenset(accept)
        self._internet = internet
        self._life = life_seconds
        self._sweep = sweep_seconds
        self._rate = requests_per_second
        self._timeout = timeout_seconds
        self._domain = domain or os.environ.get("E2B_DOMAIN") or "e2b.app"
        self._api_url = api_url or os.environ.get("E2B_API_URL") or f"https://api.{self._domain}"
        self._sandbox_url = sandbox_url or os.environ.get("E2B_SANDBOX_URL")

    def capabilities(self) -> Mapping[Demand, Capability]:
        """What its boxes are held to and can do, and why not the rest."""
        return _ABLE

    async def open(
        self,
        *,
        image: str,
        size: int,
        limits: Limits,
        max_reuses: int = 0,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> RemoteSupply:
        """`max_reuses` holds by itself: a sandbox serves one box. Raises SandboxUnavailable, ImageFault."""
        if image == "host":
            raise ImageFault("image 'host' is the native backend's: name a template of E2B's, such as 'base'")
        fleet = E2BFleet(
            Api(
                "E2B",
                self._api_url,
                headers=lambda: {"x-api-key": self._key},
                secrets=lambda: (self._key,),
                per_second=self._rate,
                timeout=self._timeout,
            ),
            self._owner,
            image,
            limits,
            able=_ABLE,
            accept=self._accept,
            internet=self._internet,
            domain=self._domain,
            sandbox_url=self._sandbox_url,
        )
        supply = RemoteSupply(
            fleet,
            self._owner,
            self._keys,
            size=size,
            limits=limits,
            life_seconds=self._life,
            sweep_seconds=self._sweep,
            on_ready=on_ready,
            on_fault=on_fault,
        )
        try:
            await supply.start()
        except BaseException:
            await fleet.close()
            raise
        return supply
