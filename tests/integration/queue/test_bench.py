"""The parts of `tiltyard bench dispatch` that no service runs by itself: the peer, and a grant beside a
history."""

from pathlib import Path

import pytest

from services.cli.bench.history import grant_costs
from services.cli.bench.noop import measure_noops


@pytest.mark.rabbitmq
def test_plain_celery_publishes_and_drains_its_no_ops(rabbitmq_url: str) -> None:
    noops = measure_noops(rabbitmq_url, 40)
    assert noops.publish_per_s > 0
    assert noops.drain_per_s > 0


def test_every_rollout_of_a_round_is_granted_beside_a_history(tmp_path: Path) -> None:
    said: list[str] = []
    few, many = grant_costs(tmp_path / "state", (100, 1_000), said.append)
    assert (few.rows, many.rows) == (100, 1_000)
    assert min(few.ms, many.ms) > 0
    assert len(said) == 2
