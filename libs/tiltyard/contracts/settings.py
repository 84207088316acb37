"""Settings of a process: one frozen class, read from `TILTYARD_*` variables.

Guarantees: a variable that no part of Tiltyard knows is an error that names the nearest known one; so is a
value that does not fit, and a setting without a default that is missing or empty.
Does not: read the process's environment; each service's `settings.py` hands it over as a mapping."""

import difflib
from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from tiltyard.contracts.document import Fault

PREFIX = "TILTYARD_"

KNOWN: dict[str, str] = {
    "DATABASE_URL": "Postgres, postgresql://…",
    "BROKER_URL": "RabbitMQ, amqp://…; empty: Postgres NOTIFY carries the hints",
    "OBJECTS_URL": "object store: file:///folder or s3://bucket",
    "TOKEN_FILE": "file (mode 0600) that holds the API token",
    "HOST": "address that a server listens on",
    "PORT": "port that a server listens on; 0: any free one",
    "METRICS_PORT": "port of /metrics in a service without an HTTP API; 0: none",
    "ALLOWED_HOSTS": "names a request's Host header may carry, comma-separated, without ports",
    "MAX_BODY_BYTES": "largest JSON body that the registry takes",
    "MAX_ARTIFACT_BYTES": "largest artifact that the registry takes",
    "ROLLOUT_URL": "where runners reach the rollout service",
    "ENGINE": "what generates tokens: transformers or scripted",
    "CACHE_DIR": "folder for downloaded policy versions",
    "DEVICE": "where torch computes: cpu, cuda, cuda:1 …",
    "MAX_BATCH": "sequences that the rollout service generates together",
    "LOADED_VERSIONS": "policy versions that the rollout service keeps in memory",
    "SCRIPT_LATENCY_MS": "how long the scripted engine takes for an answer",
    "SCRIPT_SHARE": "share of the scripted engine's answers that are right, 0 to 1",
    "SCRIPT_FILE": "JSON file of the scripted engine's answers by SHA-256 of the prompt",
    "OTLP_ENDPOINT": "OpenTelemetry collector, http://…:4318; empty: none",
    "LOG_LEVEL": "debug, info, warning or error",
    "NODE": "name of this machine in the fleet",
    "POOL": "pool that a runner belongs to",
    "SLOTS": "episodes that a runner hosts at once",
    "CPU": "CPUs that a runner offers to rollouts",
    "MEMORY_MB": "MiB of memory that a runner offers to rollouts",
    "GPU": "GPUs that a runner offers to rollouts",
    "SANDBOXES": "sandboxes that an evaluator runs, or a runner lends, at once",
    "SANDBOX_PORT": "port on which a runner lends sandboxes over HTTP; empty: it lends none, 0: any free one",
    "NETWORK_ALLOW": "hosts that tasks or borrowers may ask for, HOST:PORT or *.DOMAIN:PORT, comma-separated;"
    " empty: none",
    "NETWORK_PRIVATE": "ranges of private addresses that such hosts may lead to, comma-separated",
    "SANDBOX_BACKEND": "what isolates sandboxes: native or docker",
    "STATE_DIR": "folder of a local stack",
    "TORCH_THREADS": "threads that torch computes with",
    "URL": "where clients reach the registry",
    "TOKEN": "API token for clients, in place of TOKEN_FILE",
}
"""Every variable that some part reads, without its prefix. A process ignores those of the others."""


class Settings(BaseModel):
    """Base of a service's settings: one field for each variable, `database_url` for TILTYARD_DATABASE_URL."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


S = TypeVar("S", bound=Settings)


def _split(value: object) -> object:
    return tuple(p.strip() for p in value.split(",") if p.strip()) if isinstance(value, str) else value


CommaList = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A variable that holds several values, separated by commas."""


class InvalidSettings(ValueError):
    """Variables that do not make up a process's settings; `faults` holds one row a variable."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        super().__init__("settings are not valid: " + "; ".join(f"{f.path}: {f.message}" for f in faults))


def load(model: type[S], environ: Mapping[str, str], *, prefix: str = PREFIX) -> S:
    """Settings of `model` from `environ`, where an empty value counts as absent.

    Raises `InvalidSettings` with every unknown, missing and ill-fitting variable at once."""
    given = {k.removeprefix(prefix): v for k, v in environ.items() if k.startswith(prefix)}
    own = {name.upper() for name in model.model_fields}
    faults = [_unknown(prefix, key, own | set(KNOWN)) for key in sorted(set(given) - own - set(KNOWN))]
    values = {key.lower(): value for key, value in given.items() if key in own and value != ""}
    try:
        loaded = model.model_validate(values)
    except ValidationError as error:
        faults += [_misfit(prefix, str(row["loc"][0]), row["type"], row["msg"]) for row in error.errors()]
        raise InvalidSettings(tuple(faults)) from error
    if faults:
        raise InvalidSettings(tuple(faults))
    return loaded


def _unknown(prefix: str, key: str, known: set[str]) -> Fault:
    near = difflib.get_close_matches(key, sorted(known), n=1)
    hint = f"; did you mean {prefix}{near[0]}?" if near else "; unset it"
    return Fault(path=f"{prefix}{key}", message=f"unknown variable{hint}")


def _misfit(prefix: str, field: str, kind: str, message: str) -> Fault:
    key = field.upper()
    if kind == "missing":
        return Fault(path=f"{prefix}{key}", message=f"is not set; give it: {KNOWN.get(key, 'no default')}")
    return Fault(path=f"{prefix}{key}", message=message.removeprefix("Value error, "))
