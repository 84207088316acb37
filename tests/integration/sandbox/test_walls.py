"""No attack is vacuous: in a build without what stops it, it succeeds.

A wall is left out by the compiler (`c/without.h`) or by boxes that do without (`abuse.weakened`). What could
hurt this machine is tried in `infra/dev/vm-check` alone."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import Lab
from tiltyard.sandbox import WarmPool
from tiltyard.sandbox.abuse import ATTACKS, Attack, Finding, Verdict, assail
from tiltyard.sandbox.abuse.walls import Proof, Wall
from tiltyard.sandbox.abuse.weakened import WeakenedBackend
from tiltyard.sandbox.conformance import LIMITS
from tiltyard.sandbox.native import toolchain

pytestmark = pytest.mark.sandbox

CASES = [(attack, proof) for attack in ATTACKS for proof in attack.proofs]
GUEST = os.environ.get("TILTYARD_VM") == "1"


class Builds:
    """One build for each set of walls that is left out, made while earlier ones are being attacked."""

    def __init__(self, folder: Path, workers: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._workers = workers
        self._made: dict[frozenset[Wall], Future[WeakenedBackend]] = {}

    def order(self, walls: frozenset[Wall]) -> None:
        if walls not in self._made:
            folder = self._folder / "-".join(sorted(walls))
            self._made[walls] = self._workers.submit(WeakenedBackend, walls, folder)

    def get(self, walls: frozenset[Wall]) -> WeakenedBackend:
        self.order(walls)
        return self._made[walls].result()


@pytest.fixture(scope="module")
def builds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    if toolchain.find_compiler() is None:
        pytest.skip("needs a C compiler")
    with ThreadPoolExecutor(2) as workers:
        made = Builds(tmp_path_factory.mktemp("walls"), workers)
        for item in request.session.items:
            proof = getattr(item, "callspec", None) and item.callspec.params.get("proof")  # type: ignore[attr-defined]
            if isinstance(proof, Proof) and not possible(proof):
                made.order(proof.without)
        yield made
        workers.shutdown(cancel_futures=True)


def possible(proof: Proof) -> str:
    """Why it cannot be tried on this machine; empty when it can."""
    if proof.guest and not GUEST:
        return f"in infra/dev/vm-check alone: {proof.guest}"
    if proof.needs and (not Path(proof.needs).exists() or Path(proof.needs).read_text().strip() != "1"):
        return f"this kernel refuses it by itself: {proof.needs} is not 1"
    if (os.cpu_count() or 1) < proof.cpus:
        return f"needs {proof.cpus} CPUs"
    return ""


@pytest.mark.parametrize(
    ("attack", "proof"),
    CASES,
    ids=[f"{attack.row}-without-{str(proof).replace(' ', '-')}" for attack, proof in CASES],
)
def test_without_its_wall_the_attack_succeeds(lab: Lab, builds: Builds, attack: Attack, proof: Proof) -> None:
    if reason := possible(proof):
        pytest.skip(reason)

    async def make() -> Finding:
        async with WarmPool(size=3, limits=LIMITS, backend=builds.get(proof.without)) as pool:
            (found,) = [found async for found in assail(pool, [attack], patience=5)]
            return found

    found = lab.run(make())
    assert found.verdict is Verdict.broken, found
    assert not found.detail.startswith("the engine failed"), "a build that does not work proves nothing"


def test_every_attack_names_what_stops_it_or_why_that_cannot_be_left_out() -> None:
    for attack in ATTACKS:
        assert bool(attack.proofs) != bool(attack.beyond), attack.row
    assert sum(bool(attack.proofs) for attack in ATTACKS) >= 40


def test_a_helper_without_a_wall_is_never_taken_for_one_that_is_used(tmp_path: Path) -> None:
    if toolchain.find_compiler() is None:
        pytest.skip("needs a C compiler")
    weak = toolchain.compile_helpers(tmp_path, without=[Wall.seccomp.value])
    assert not toolchain._is_current(weak, toolchain.source_hash())
    assert not toolchain.is_warm(weak)
