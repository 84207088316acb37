"""The ledger of a run, as the registry answers it.

Guarantees: rows are read in one snapshot; each committed step's manifest is read from the object store, and
one that cannot be read is a discrepancy.
Does not: mend anything."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.contracts.document import InvalidDocument
from tiltyard.contracts.http import Discrepancy, LedgerView
from tiltyard.contracts.records import StepManifest, unpack
from tiltyard.core.ledger import Records, reconcile
from tiltyard.objects import ObjectError, ObjectStore
from tiltyard.store import ledger
from tiltyard.store.database import AsyncUnitOfWork, now

MOST_DISCREPANCIES = 200
"""Named in one answer."""
FRESH, SHARE, MOST_KEPT = 2.0, 20.0, 256


async def check(work: AsyncUnitOfWork, objects: ObjectStore, run_id: str) -> LedgerView:
    """Reconcile every record of a run."""
    records, keys, at = await work.run(_read, run_id)
    found = await asyncio.to_thread(_manifests, objects, keys)
    return await asyncio.to_thread(_view, run_id, ledger.with_manifests(records, found), at)


class Recent:
    """The ledgers that the console shows: reconciled anew only so often that it takes a small part of the
    time, however large a run is and however many look at it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, LedgerView]] = {}

    async def check(self, work: AsyncUnitOfWork, objects: ObjectStore, run_id: str) -> LedgerView:
        """The run's ledger, at most `FRESH` seconds old, or as old as twenty reconciliations take."""
        good_until, view = self._kept.get(run_id, (0.0, None))
        started = self._clock()
        if view is not None and started < good_until:
            return view
        view = await check(work, objects, run_id)
        ended = self._clock()
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[run_id] = (ended + max(FRESH, SHARE * (ended - started)), view)
        return view


def _read(session: Session, run_id: str) -> tuple[Records, dict[int, str], datetime]:
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    return ledger.load(session, run_id), ledger.manifest_keys(session, run_id), now(session)


def _manifests(objects: ObjectStore, keys: Mapping[int, str | None]) -> dict[int, frozenset[str] | str]:
    return {step: _trained(objects, key) for step, key in keys.items()}


def _trained(objects: ObjectStore, key: str | None) -> frozenset[str] | str:
    """Rollouts that a manifest lists as trained, or why it cannot be read."""
    if key is None:
        return "is committed, but names no manifest"
    try:
        manifest = unpack(StepManifest, objects.get(key), what=f"manifest {key}")
    except (ObjectError, InvalidDocument, ValueError) as error:
        return f"manifest {key}: {error}"
    return frozenset(r.rollout_id for g in manifest.groups for r in g.rollouts if r.advantage is not None)


def _view(run_id: str, records: Records, at: datetime) -> LedgerView:
    odd = reconcile(records)
    states = Counter(str(r.state) for r in records.rollouts)
    return LedgerView(
        run_id=run_id,
        planned_groups=records.groups_planned,
        created=len(records.rollouts),
        by_state=dict(sorted(states.items())),
        trained_steps=sum(s.committed for s in records.steps),
        balanced=not odd,
        discrepancies=tuple(
            Discrepancy(rule=d.rule, row=d.row, detail=d.detail) for d in odd[:MOST_DISCREPANCIES]
        ),
        checked_at=at,
    )
