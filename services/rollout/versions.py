"""Policy versions in memory, kept in step with their rows.

Guarantees: a version is loaded once however many ask for it, away from the thread that generates; what cannot
be loaded leaves the loaded ones as they are; `@latest` is the newest version that is published and loaded; a
withdrawn version is no longer chosen once its row was seen.
Does not: ask the database for each request; rows are read every `POLL_SECONDS` and at a hint."""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from services.rollout.engine import Choose, Policy
from tiltyard.objects import ObjectStoreUnavailable
from tiltyard.queue import Ear
from tiltyard.store import policies, runs
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.store.policies import PolicyRow

log = logging.getLogger("tiltyard.rollout")

POLL_SECONDS = 0.2
FOLLOWED_SECONDS = 900.0
"""A run that nobody asked for this long is no longer loaded ahead."""
RETRY_SECONDS = 5.0
"""A version that could not be loaded is tried again after this."""
SHOWN = 8

Key = tuple[str, int]
"""Run id and version."""
Load = Callable[[PolicyRow], Policy]
"""Loads a version; blocks; any exception means that it cannot be loaded now."""


class NoSuchModel(LookupError):
    """No run, or no published version, has this name."""


class NothingPublished(LookupError):
    """The run has no published version yet."""


class NotLoaded(LookupError):
    """The version is published, but cannot be loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request names as its model."""

    run: str
    """As the request wrote it: an id or a name."""
    run_id: str
    version: int | None
    """None: the latest."""


class Versions:
    """The loaded policy versions of the runs that are asked for."""

    def __init__(self, work: AsyncUnitOfWork, load: Load, *, tenant: str, keep: int = 4) -> None:
        self._work, self._load, self._tenant, self._keep = work, load, tenant, keep
        self._held: OrderedDict[Key, Policy] = OrderedDict()
        self._lock = threading.Lock()
        self._published: dict[str, tuple[int, ...]] = {}
        self._run_ids: dict[str, str] = {}
        self._asked: dict[str, float] = {}
        self._loading: dict[Key, asyncio.Task[Policy]] = {}
        self._failed: dict[Key, tuple[NotLoaded, float]] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="tiltyard-load")

    @property
    def loaded(self) -> tuple[Policy, ...]:
        with self._lock:
            return tuple(self._held.values())

    async def chooser(self, model: str) -> Choose:
        """What `run@version` or `run@latest` means: a way to choose the policy once generation begins, with
        a version loaded already.

        Raises `NoSuchModel`, `NothingPublished` or `NotLoaded`, or SQLAlchemyError without a database."""
        run, version = _parsed(model)
        target = Target(run=run, run_id=await self._run_id(run), version=version)
        self._asked[target.run_id] = time.monotonic()
        found = self._find(target) or await self._bring(target)
        return lambda: self._chosen(target, found)

    def _chosen(self, target: Target, found: Policy) -> Policy:
        """The newest policy that fits, else the one found when it was asked for. Runs in any thread."""
        policy = self._find(target) or found
        if policy.version not in self._published.get(policy.run_id, (policy.version,)):
            raise NoSuchModel(f"version {policy.version} of run {target.run} was withdrawn; ask again")
        return policy

    async def models(self, limit: int) -> list[dict[str, object]]:
        """What OpenAI's model list says of the runs that have a published version."""
        return [
            {
                "id": f"{run.name}@latest",
                "object": "model",
                "created": run.created,
                "owned_by": "tiltyard",
                "root": f"{run.run_id}@{run.newest}",
            }
            for run in await self._work.run(policies.served, self._tenant, limit=limit)
        ]

    async def follow(self, ear: Ear) -> None:
        """Load new versions and forget withdrawn ones, until cancelled."""
        while True:
            await ear.wait(POLL_SECONDS)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  (loaded versions go on answering; rows are read again)
                log.warning("rollout.rows_unreadable", extra={"fields": {"error": _reason(error)}})

    async def look(self) -> None:
        """Read the rows of the followed runs once."""
        followed = self._followed()
        if not followed:
            return
        with self._lock:
            held = list(self._held)
        published = await self._work.run(policies.published, followed)
        self._published.update({run: published.get(run, ()) for run in followed})
        with self._lock:
            for run, version in held:
                if version not in self._published.get(run, ()):
                    self._held.pop((run, version), None)
        for run in followed:
            self._load_ahead(run)

    def close(self) -> None:
        """Stop loading; what is being loaded is given up."""
        for task in self._loading.values():
            task.cancel()
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _followed(self) -> list[str]:
        """Runs asked for lately, and those of which a version is held."""
        oldest = time.monotonic() - FOLLOWED_SECONDS
        with self._lock:
            held = {run for run, _ in self._held}
        self._asked = {run: at for run, at in self._asked.items() if at >= oldest or run in held}
        return sorted(self._asked)

    def _load_ahead(self, run: str) -> None:
        """Begin to load the newest version unless it is there, under way, or failed lately."""
        newest = max(self._published[run], default=None)
        if newest is None or (run, newest) in self._held or self._failure((run, newest)):
            return
        self._loaded_once((run, newest))

    def _find(self, target: Target) -> Policy | None:
        with self._lock:
            if target.version is None:
                versions = [version for run, version in self._held if run == target.run_id]
                key = (target.run_id, max(versions, default=-1))
            else:
                key = (target.run_id, target.version)
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key]

    async def _run_id(self, run: str) -> str:
        if run not in self._run_ids:
            try:
                self._run_ids[run] = await self._work.run(runs.find, self._tenant, run)
            except runs.NoSuchRun as error:
                raise NoSuchModel(await self._what_exists(str(error))) from error
        return self._run_ids[run]

    async def _what_exists(self, message: str) -> str:
        names = [served.name for served in await self._work.run(policies.served, self._tenant, limit=SHOWN)]
        served = ", ".join(f"{name}@latest" for name in names) or "none yet"
        return f"{message}; models that exist: {served}"

    async def _bring(self, target: Target) -> Policy:
        """Load the version, or the newest that can be loaded."""
        published = (await self._work.run(policies.published, [target.run_id])).get(target.run_id, ())
        self._published[target.run_id] = published
        if not published:
            raise NothingPublished(f"run {target.run} has published no policy version yet; ask again later")
        if target.version is None:
            return await self._bring_newest(target.run_id, published)
        if target.version not in published:
            newest = ", ".join(map(str, published[-SHOWN:]))
            raise NoSuchModel(
                f"run {target.run} has no published version {target.version}; the newest are {newest}"
            )
        return await self._loaded((target.run_id, target.version))

    async def _bring_newest(self, run: str, published: Sequence[int]) -> Policy:
        first: NotLoaded | None = None
        for version in sorted(published, reverse=True)[:SHOWN]:
            try:
                return await self._loaded((run, version))
            except NotLoaded as error:
                first = first or error
                if isinstance(error.__cause__, ObjectStoreUnavailable):
                    break
        assert first is not None, "a run with published versions is loaded or tells why not"
        raise first

    async def _loaded(self, key: Key) -> Policy:
        with self._lock:
            if key in self._held:
                return self._held[key]
        if failure := self._failure(key):
            raise failure
        return await asyncio.shield(self._loaded_once(key))

    def _failure(self, key: Key) -> NotLoaded | None:
        """Why a version could not be loaded, for as long as it is not tried again."""
        failure, again = self._failed.get(key, (None, 0.0))
        return failure if time.monotonic() < again else None

    def _loaded_once(self, key: Key) -> "asyncio.Task[Policy]":
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._load_row(key), name=f"load {key}")
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: Key, task: "asyncio.Task[Policy]") -> None:
        del self._loading[key]
        if not task.cancelled():
            task.exception()

    async def _load_row(self, key: Key) -> Policy:
        began = time.monotonic()
        try:
            row = await self._work.run(policies.get, *key)
            if row is None or row.state != "PUBLISHED":
                raise NoSuchModel(f"version {key[1]} of run {key[0]} was withdrawn")
            policy = await asyncio.get_running_loop().run_in_executor(self._loader, self._load, row)
        except (NoSuchModel, SQLAlchemyError):
            raise
        except Exception as error:
            failure = NotLoaded(f"version {key[1]} of run {key[0]} cannot be loaded: {_reason(error)}")
            self._failed[key] = (failure, time.monotonic() + RETRY_SECONDS)
            log.error("rollout.version_not_loaded", exc_info=error, extra={"fields": _fields(key, began)})
            raise failure from error
        self._failed.pop(key, None)
        self._hold(key, policy)
        log.info("rollout.version_loaded", extra={"fields": _fields(key, began)})
        return policy

    def _hold(self, key: Key, policy: Policy) -> None:
        with self._lock:
            self._held[key] = policy
            self._held.move_to_end(key)
            while len(self._held) > self._keep:
                self._held.popitem(last=False)


def _parsed(model: str) -> tuple[str, int | None]:
    run, at, version = model.rpartition("@")
    if not at or not run or not (version == "latest" or (version.isascii() and version.isdecimal())):
        raise NoSuchModel(f"{model!r} names no model; write run@version or run@latest")
    return run, None if version == "latest" else int(version)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _fields(key: Key, began: float) -> dict[str, object]:
    return {"run_id": key[0], "version": key[1], "seconds": round(time.monotonic() - began, 3)}
