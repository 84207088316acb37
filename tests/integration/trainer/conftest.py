"""Training runs whose rollouts are scored and kept already, so that a trainer has only to train."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from sqlalchemy import text

from tests.integration.store.world import World
from tiltyard.contracts.records import AttemptRecord, StepManifest, Turn, pack, unpack
from tiltyard.contracts.run_config import FreshPolicy
from tiltyard.core.group import Settlement, Verdict
from tiltyard.core.ledger import Discrepancy, reconcile
from tiltyard.core.outcome import Outcome
from tiltyard.objects import ObjectStore, open_store
from tiltyard.store import groups, ledger
from tiltyard.store.database import UnitOfWork
from tiltyard.store.ledger import with_manifests
from tiltyard.testing.servers import Postgres

POLICY = FreshPolicy(hidden_size=16, layers=1, heads=1, max_positions=64)
STEPS, GROUPS, SIZE = 4, 2, 2
BOS, EOS = 257, 258
AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class School:
    """A database and an object store with runs in them."""

    world: World
    database_url: str
    objects_url: str
    objects: ObjectStore

    def run(self, *, groups_ready: int = STEPS * GROUPS) -> str:
        """A run of `STEPS` steps, with a full checkpoint every second one, and READY groups."""
        run = self.world.train(
            published=False,
            policy=POLICY.model_dump(),
            steps=STEPS,
            groups_per_step=GROUPS,
            max_staleness=100,
            group_size=SIZE,
            minibatches=2,
            checkpoint_every=2,
            optimizer={"kind": "muon", "learning_rate": 1e-3, "warmup_steps": 0},
        )
        self.ready(run, groups_ready)
        return run

    def ready(self, run: str, count: int) -> None:
        """READY groups; the answers of the n-th are the same in every run."""
        planned = self.world.value("SELECT count(*) FROM groups WHERE run_id = :r", r=run)
        for index in range(planned, planned + count):
            ids = self.world.scored(run, [0.0, 1.0])
            for member, rollout in enumerate(ids):
                self._keep(run, rollout, f"{index} {'yes' if member else 'no'}")
        with self.world.work() as session:
            for group in groups.open_groups(session, run):
                groups.close(session, [(group, Settlement(verdict=Verdict.READY, reason="test"))])

    def _keep(self, run: str, rollout: str, answer: str) -> None:
        tokens = (*answer.encode(), EOS)
        turn = Turn(
            prompt_token_ids=(BOS, *b"Say yes."),
            token_ids=tokens,
            logprobs=(-5.0,) * len(tokens),
            policy_versions=(0,) * len(tokens),
            text=answer,
            finish_reason="stop",
        )
        fence = self.world.row(rollout).fence
        record = AttemptRecord(
            run_id=run,
            rollout_id=rollout,
            fence=fence,
            task_version="t",
            incarnation="r",
            outcome=Outcome.COMPLETED,
            turns=(turn,),
            answer=answer,
            started_at=AT,
            ended_at=AT,
        )
        self.objects.put(f"a/{rollout}/{fence}", pack(record))

    def state(self, run: str) -> tuple[str, str]:
        """State of the run, and why."""
        with self.world.work() as session:
            row = session.execute(text("SELECT state, reason FROM runs WHERE id = :r"), {"r": run}).one()
        return row.state, row.reason

    def weights(self, run: str) -> str:
        """Hash of the newest version's weights."""
        return self.world.value(
            "SELECT files->>'model.safetensors' FROM policy_versions WHERE run_id = :r"
            " AND state = 'PUBLISHED' ORDER BY version DESC LIMIT 1",
            r=run,
        )

    def versions(self, run: str) -> list[int]:
        return self.world.column(
            "SELECT version FROM policy_versions WHERE run_id = :r AND state = 'PUBLISHED' ORDER BY version",
            r=run,
        )

    def disagreements(self, run: str) -> list[Discrepancy]:
        """What the ledger finds, with the manifests as they are stored."""
        with self.world.work() as session:
            records, keys = ledger.load(session, run), ledger.manifest_keys(session, run)
        found = {
            step: frozenset(
                r.rollout_id
                for g in unpack(StepManifest, self.objects.get(key), what=key).groups
                for r in g.rollouts
            )
            for step, key in keys.items()
        }
        return reconcile(with_manifests(records, found))

    def let_the_lease_run_out(self) -> None:
        self.world.sql("UPDATE runs SET lease_until = clock_timestamp() - interval '1 second'")


@pytest.fixture(scope="module")
def school(postgres: Postgres, migrated: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[School]:
    torch.set_num_threads(1)
    url = postgres.database(template=migrated)
    objects_url = f"file://{tmp_path_factory.mktemp('objects')}"
    work = UnitOfWork(url)
    yield School(
        world=World(work), database_url=url, objects_url=objects_url, objects=open_store(objects_url)
    )
    work.close()
    postgres.drop_database(url)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
