"""The agent-sandbox backend."""

import os
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tiltyard.sandbox.capability import Capability, Demand, refuse_unenforced
from tiltyard.sandbox.errors import ImageFault, SandboxUnavailable
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.remote.api import Api
from tiltyard.sandbox.remote.fleet import Owner
from tiltyard.sandbox.remote.supply import RemoteSupply

from .claims import ClaimFleet
from .runtime import AgentSandboxGuest

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TEMPLATE = "the SandboxTemplate of the pool says how much; nothing here can see it"
_ABLE: Mapping[Demand, Capability] = {
    Demand.memory: Capability(False, _TEMPLATE),
    Demand.cpus: Capability(False, _TEMPLATE),
    Demand.disk: Capability(False, _TEMPLATE),
    Demand.pids: Capability(False, "the kubelet's podPidsLimit says how many; nothing here can see it"),
    Demand.inodes: Capability(False, "no limit of a pod's"),
    Demand.cpu_time: Capability(False, "counted for one process alone (ulimit -t), not for all together"),
    Demand.leftovers: Capability(
        False, "its process group is killed; what left the group lives on in the box"
    ),
    Demand.counters: Capability(False, "the runtime tells neither CPU time nor memory of a command"),
    Demand.pause: Capability(False, "a suspended pod loses its processes"),
    Demand.kernel: Capability(False, "as the template's runtimeClassName says: gvisor or kata have one"),
    Demand.streaming: Capability(False, "the runtime answers when the command has ended"),
    Demand.descriptors: Capability(False, "it is another machine"),
    Demand.background: Capability(False, "the runtime waits for each command"),
    Demand.ports: Capability(False, "the router carries HTTP, and no sockets"),
    Demand.snapshots: Capability(False, "a pod's snapshots stay in its cluster"),
}


class AgentSandboxBackend:
    """Sandboxes of a Kubernetes cluster: a pool's image is the name of a SandboxWarmPool.

    Its service account must be allowed to create, get, list, watch, patch and delete `sandboxclaims`."""

    def __init__(
        self,
        *,
        router_url: str | None = None,
        router_token: str | None = None,
        namespace: str | None = None,
        api_url: str | None = None,
        token: str | Callable[[], str] | None = None,
        authority: str | None = None,
        owner: str | None = None,
        accept: Collection[Demand] = (),
        home: str = "/app",
        port: int = 8888,
        exec_seconds: float = 170.0,
        life_seconds: float = 300.0,
        sweep_seconds: float = 30.0,
        requests_per_second: float = 10.0,
        timeout_seconds: float = 30.0,
    ) -> None:
        """`router_url`, `router_token` None: AGENT_SANDBOX_ROUTER_URL, AGENT_SANDBOX_ROUTER_TOKEN. `api_url`,
        `token`, `authority` (a file) and `namespace` None: those of the pod that this runs in.
        `home` is the runtime's SANDBOX_BASE_DIR, `port` its own. `owner`, `life_seconds`: see `E2BBackend`.

        Raises CapabilityRefused, SandboxUnavailable without a router, or outside a cluster without an
        `api_url`."""
        refuse_unenforced("agent-sandbox", _ABLE, accept)
        self._api_url = api_url or _in_cluster()
        self._token = token if callable(token) else (lambda: token) if token else _account_token
        self._authority = authority or (None if api_url else str(_ACCOUNT / "ca.crt"))
        self._namespace = namespace or _account_namespace()
        self._router_url = router_url or os.environ.get("AGENT_SANDBOX_ROUTER_URL", "")
        self._router_token = router_token or os.environ.get("AGENT_SANDBOX_ROUTER_TOKEN", "")
        if not self._router_url:
            raise SandboxUnavailable("agent-sandbox needs its router: set AGENT_SANDBOX_ROUTER_URL")
        self._owner = Owner.new(owner or f"{socket.gethostname()}-{os.getpid()}"[-63:])
        self._keys: dict[str, str] = {}
        self._home = home
        self._port = port
        self._exec_seconds = exec_seconds
        self._life = life_seconds
        self._sweep = sweep_seconds
        self._rate = requests_per_second
        self._timeout = timeout_seconds

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
            raise ImageFault("image 'host' is the native backend's: name a SandboxWarmPool of the namespace")
        api = Api(
            "Kubernetes",
            self._api_url,
            headers=lambda: {"authorization": f"Bearer {self._token()}"},
            secrets=lambda: (self._token(),),
            per_second=self._rate,
            timeout=self._timeout,
            verify=ssl.create_default_context(cafile=self._authority) if self._authority else True,
        )
        router = Api(
            "the router",
            self._router_url,
            headers=dict,
            secrets=lambda: (self._router_token,),
            per_second=1000,
        )
        fleet: ClaimFleet

        def guest(claim: str, sandbox: str) -> AgentSandboxGuest:
            return AgentSandboxGuest(
                claim,
                self._route(router, sandbox),
                self._home,
                fleet.is_there,
                most_seconds=self._exec_seconds,
            )

        fleet = ClaimFleet(api, router, self._owner, self._namespace, image, able=_ABLE, guest=guest)
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

    def _route(self, shared: Api, sandbox: str) -> Api:
        """The router, to one sandbox."""
        headers = {
            "x-sandbox-id": sandbox,
            "x-sandbox-namespace": self._namespace,
            "x-sandbox-port": str(self._port),
        }
        if self._router_token:
            headers["authorization"] = f"Bearer {self._router_token}"
        return Api(
            f"sandbox {sandbox}",
            self._router_url,
            headers=lambda: headers,
            secrets=lambda: (self._router_token,),
            per_second=50,
            client=shared.client,
        )


def _in_cluster() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SandboxUnavailable(
            "not in a cluster (KUBERNETES_SERVICE_HOST is not set): give api_url and token"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _account_token() -> str:
    """Read for each request: the cluster replaces it."""
    try:
        return (_ACCOUNT / "token").read_text().strip()
    except OSError as error:
        raise SandboxUnavailable(f"no token of a service account: {error}; give token") from error


def _account_namespace() -> str:
    try:
        return (_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return "default"
