"""The registry as an ASGI application.

Guarantees: whoever comes in has passed the gate; whatever goes wrong goes out as a problem.
Does not: open connections; `Ports` brings them."""

from fastapi import FastAPI

from services.registry.api import artifacts, fleet, health, rollouts, runs, tasks
from services.registry.console import entry, routes
from services.registry.console.page import Pages
from services.registry.examples import examples_of
from services.registry.gauges import Gauges, Timed
from services.registry.ledger import Recent
from services.registry.ports import Ports
from services.registry.problem import EXPECTED, refuse
from tiltyard.web import openapi, problem
from tiltyard.web.gate import PROBES, Gate

DESCRIPTION = """Tasks in, better policies out.

Every list is a page: pass `next_cursor` back as `cursor` until it is null. Every error is a
problem document (RFC 9457) whose `faults` name each wrong path. A POST may carry an `Idempotency-Key`."""
BODY_LIMIT = 32_000_000
UPLOADS = ("PUT", "/v1/artifacts")


def create_app(
    ports: Ports, gauges: Gauges, *, hosts: tuple[str, ...] = (), body_limit: int = BODY_LIMIT
) -> FastAPI:
    """The application over its ports. `hosts` are the Host names served beside the loopback's."""
    app = FastAPI(
        title="Tiltyard registry", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None
    )
    app.state.ports, app.state.gauges, app.state.pages = ports, gauges, Pages()
    app.state.ledgers = Recent()
    problem.install(app, refuse, EXPECTED)
    app.add_exception_handler(entry.LoggedOut, entry.on_logged_out)
    for module in (tasks, artifacts, runs, rollouts, fleet, health, entry, routes):
        app.include_router(module.router)
    app.add_middleware(
        Gate,
        token=ports.token,
        token_hint="`tiltyard up` keeps the token in the file `token` of its state directory",
        hosts=hosts,
        body_limit=lambda method, path: ports.max_artifact_bytes if (method, path) == UPLOADS else body_limit,
        is_open=_is_open,
    )
    app.add_middleware(Timed, gauges=gauges)
    app.add_middleware(problem.LastResort)
    openapi.install(app, examples_of)
    return app


def _is_open(path: str) -> bool:
    """The console asks for a cookie of its own (`console.session`)."""
    return path in PROBES or path == "/" or path.startswith("/console")
