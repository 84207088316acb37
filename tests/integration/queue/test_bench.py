"""The parts of `tiltyard bench dispatch` that no service runs by itself: the peer, a grant beside a history,
and what stopping it leaves behind."""

import os
import signal
from pathlib import Path

import pytest

from services.cli.bench.command import Stopped, on_each_transport, stopping
from services.cli.bench.history import measure
from services.cli.bench.noop import measure_noops
from services.cli.bench.sheet import Kind, Sheet
from tiltyard.testing.servers.daemon import living, wait_until

NOBODY = "nobody carries this mark"


@pytest.mark.rabbitmq
def test_plain_celery_publishes_and_drains_its_no_ops(rabbitmq_url: str) -> None:
    noops = measure_noops(rabbitmq_url, 40)
    assert noops.publish_per_s > 0
    assert noops.drain_per_s > 0


def test_every_rollout_of_a_round_is_granted_beside_a_history(tmp_path: Path) -> None:
    sheet = Sheet(part_seconds=300.0, seconds=300.0)
    measure(tmp_path / "state", (200, 2_000), sheet)
    assert sheet.failures == []
    few, many = sheet.figures["grant_cost"]
    assert (few["rows"], many["rows"]) == (200, 2_000)
    assert sheet.figures["grant_cost_ratio_200_2k"] == many["ms"] / few["ms"] > 0


@pytest.mark.rabbitmq
def test_sigterm_ends_a_bench_with_its_figures_and_without_its_broker(tmp_path: Path) -> None:
    sheet = Sheet(part_seconds=300.0, seconds=300.0)

    def act(transport: str, url: str) -> None:
        sheet.put(transport, {"measured": True})
        if url:
            assert living(NOBODY, tmp_path), "the broker is there"
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), stopping():
        on_each_transport(act, sheet, tmp_path, "")
    assert signal.getsignal(signal.SIGTERM) is before
    assert sheet.figures == {"postgres": {"measured": True}, "rabbitmq": {"measured": True}}
    assert [f.kind for f in sheet.failures] == [Kind.INTERRUPTED]
    wait_until(lambda: not living(NOBODY, tmp_path), "the end of the broker's processes", within=30)
