"""The attacks of `tiltyard.sandbox.abuse` against native boxes, and the judgement of attacks that succeed."""

import asyncio
import json
import subprocess
import sys

import pytest

from tests.integration.sandbox.conftest import Lab
from tiltyard.sandbox import CapabilityRefused, SandboxGone, WarmPool
from tiltyard.sandbox.abuse import ATTACKS, Arena, Attack, Finding, Verdict, assail
from tiltyard.sandbox.abuse.attack import Breach, Unattackable, must_say
from tiltyard.sandbox.conformance import LAWS, LIMITS, conform

pytestmark = pytest.mark.sandbox


def made(lab: Lab, *attacks: Attack, excuse: str = "") -> list[Finding]:
    async def run() -> list[Finding]:
        async with WarmPool(size=3, limits=LIMITS) as pool:
            return [finding async for finding in assail(pool, attacks, lambda _name, _seen: excuse)]

    return lab.run(run())


def test_there_is_one_attack_for_each_row() -> None:
    assert [attack.row for attack in ATTACKS] == list(range(1, 46))
    assert len({attack.name for attack in ATTACKS}) == 45


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.row}")
def test_native_boxes_withstand_it(lab: Lab, attack: Attack) -> None:
    (found,) = made(lab, attack)
    assert found.verdict in (Verdict.defended, Verdict.not_attackable), found
    assert (found.verdict is Verdict.defended) == (not found.detail)


def test_every_law_holds(lab: Lab) -> None:
    async def run() -> list[str]:
        async with WarmPool(size=3, limits=LIMITS) as pool:
            return [f"{f.law}: {f.detail}" async for f in conform(pool) if not f.holds]

    assert len(LAWS) >= 40
    assert len({law.name for law in LAWS}) == len(LAWS)
    assert lab.run(run()) == []


async def _succeeds(arena: Arena) -> None:
    must_say(await arena.python("print('owned')"), "")


async def _breaches(arena: Arena) -> None:
    raise Breach("owned")


async def _cannot(arena: Arena) -> None:
    raise Unattackable("no such machine")


async def _refused(arena: Arena) -> None:
    raise CapabilityRefused("no terminals")


async def _dies(arena: Arena) -> None:
    raise SandboxGone("its PID 1 died")


def test_an_attack_that_succeeds_is_never_called_defended(lab: Lab) -> None:
    attacks = [
        Attack(n, "x", make) for n, make in enumerate((_succeeds, _breaches, _dies, _cannot, _refused))
    ]
    assert [found.verdict for found in made(lab, *attacks)] == [Verdict.broken] * 3 + [
        Verdict.not_attackable
    ] * 2
    excused = made(lab, *attacks[:2], excuse="it has no wall")
    assert [found.verdict for found in excused] == [Verdict.cannot_defend] * 2
    assert all("it has no wall" in found.detail and "owned" in found.detail for found in excused)


def test_the_command_reports_each_row(lab: Lab) -> None:
    """In a process of its own, as an operator runs it."""

    async def run() -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "sandbox", "check", "--json"), stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out

    code, out = lab.run(run())
    document = json.loads(out)
    assert (code, document["holds"]) == (0, True), document
    assert [attack["row"] for attack in document["attacks"]] == list(range(1, 46))
    assert len(document["laws"]) == len(LAWS)
