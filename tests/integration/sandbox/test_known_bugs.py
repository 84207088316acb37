"""What went wrong in other sandbox systems must not go wrong here: each report, the law, and the test that is
named after it. Those that had no test elsewhere are here.

Sources: issues and pull requests of the projects that are named, read 2026-11."""

import ast
import asyncio
import inspect
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import tiltyard.sandbox
from tests.integration.sandbox.conftest import Lab, alive, payload_uid, said
from tiltyard.sandbox import Box, ExecOutcome
from tiltyard.sandbox.native.box import NativeBox
from tiltyard.sandbox.native.command import Command

pytestmark = pytest.mark.sandbox

TESTS = Path(__file__).parents[2]
HERE = "integration/sandbox/test_known_bugs.py"
EXEC, POOL, WARM = (f"integration/sandbox/test_{name}.py" for name in ("exec", "pool", "warm"))
ABUSE, BACKGROUND = "integration/sandbox/test_abuse.py", "integration/sandbox/test_background.py"
DOCKER, LENDER = "integration/sandbox_docker/test_docker.py", "unit/runner/test_lender.py"
LENDING, LEAKS = "integration/runner/test_lending.py", "chaos/test_sandbox_leaks.py"

REPORTS: dict[str, tuple[tuple[str, str], ...]] = {
    "SandboxFusion#67": ((HERE, "test_a_pool_whose_commands_all_timed_out_serves_the_next"),),
    "SandboxFusion#62": (
        (EXEC, "test_output_below_the_cap_is_never_lost_or_mixed"),
        (HERE, "test_output_that_was_cut_says_so"),
    ),
    "inspect_ai#1357, #2779, #1585": ((HERE, "test_nothing_of_a_command_runs_on_after_its_timeout"),),
    "inspect_ai#836": ((BACKGROUND, "test_output_is_kept_with_its_offsets"),),
    "inspect_ai#1979": ((EXEC, "test_output_before_a_timeout_is_kept"),),
    "E2B#1031": (
        (BACKGROUND, "test_the_leader_s_end_takes_its_children"),
        (HERE, "test_a_port_that_a_timed_out_command_s_child_held_is_free"),
    ),
    "E2B#500": (
        (POOL, "test_who_waits_too_long_is_told_and_takes_nothing"),
        (EXEC, "test_wall_time_ends_a_sleeper_that_was_not_starved"),
    ),
    "E2B#1034": ((BACKGROUND, "test_a_background_fork_bomb_is_killed_whole"),),
    "E2B#1074": ((BACKGROUND, "test_output_is_kept_with_its_offsets"),),
    "E2B#1381": (
        (LENDER, "test_use_starts_the_lease_anew_and_no_lease_ends_during_use"),
        (LENDING, "test_a_lease_that_ends_takes_the_sandbox_along"),
    ),
    "e2b-dev/infra#2639, #3256": (
        (LENDING, "test_a_stream_that_nobody_reads_any_more_ends_the_sandbox"),
        (POOL, "test_a_cancelled_waiter_frees_its_place"),
    ),
    "daytona#5140": ((ABUSE, "test_native_boxes_withstand_it"),),  # rows 34 and 37
    "daytona#4996": ((HERE, "test_an_owner_out_of_descriptors_is_told_and_goes_on_when_it_has_some"),),
    "daytona#2236, #3294, #2490": (
        (LEAKS, "test_a_killed_host_costs_its_commands_an_infra_error_and_the_pool_recovers"),
        (LENDER, "test_releasing_twice_gives_back_once"),
    ),
    "OpenSandbox#217, llm-sandbox#43": ((HERE, "test_a_command_without_limits_of_its_own_has_some"),),
    "agent-sandbox#1215, #1266": (
        (HERE, "test_a_pool_never_has_more_boxes_than_its_size"),
        (DOCKER, "test_a_pool_never_has_more_containers_than_boxes"),
    ),
    "agent-sandbox#1306": ((LENDER, "test_a_sandbox_that_nobody_asks_for_is_destroyed_when_its_lease_ends"),),
    "SWE-ReX#301, #189": ((POOL, "test_a_pool_without_the_rights_is_refused_with_the_cure"),),
    "bubblewrap#505, typeclaw#1441": ((POOL, "test_the_doctor_finds_this_host_usable"),),
    "bubblewrap#587, openclaw#68691, subfloor#644, OpenHands#14277": (
        (WARM, "test_no_helper_of_a_copy_is_left_to_a_process_that_does_not_reap"),
        (ABUSE, "test_native_boxes_withstand_it"),  # row 32
    ),
    "openclaw#110735": (
        (EXEC, "test_a_cancelled_command_is_killed_and_spoils_its_box"),
        (DOCKER, "test_a_cancelled_command_takes_its_box_along"),
    ),
    "trajectoryRL#248": ((EXEC, "test_wall_time_ends_a_sleeper_that_was_not_starved"),),
    "verl#6673, #7155": (
        ("integration/evaluator/test_process.py", "test_a_killed_evaluators_gradings_are_done_by_the_next"),
    ),
    "ROCK#256": ((POOL, "test_an_unknown_image_is_refused"),),
    "ROCK#653, #654": ((ABUSE, "test_native_boxes_withstand_it"),),  # rows 4, 7 and 8
    "CubeSandbox#235": ((LEAKS, "test_many_runs_of_every_end_leave_nothing"),),
    "QWED#338": ((DOCKER, "test_its_container_has_no_right_and_no_way_out"),),
    "OpenShell#2658": ((HERE, "test_no_python_of_ours_runs_between_fork_and_exec"),),
    "benchflow#146, #337": ((POOL, "test_who_waits_too_long_is_told_and_takes_nothing"),),
    "NemoClaw#809, epicbox#9": ((ABUSE, "test_native_boxes_withstand_it"),),  # rows 1 and 2
    "vercel/eve#440": ((EXEC, "test_a_cancelled_command_is_killed_and_spoils_its_box"),),
}

ELSEWHERE = {
    "SandboxFusion#33, OpenSandbox#1661, agent-sandbox#1454": "speed: `tiltyard sandbox bench`",
    "judge0#543, #603, #554, #536; nsjail#196, #219; snekbox#126": "cgroup versions: `infra/dev/vm-check`",
    "verifiers#1245": "does not apply: a grader has a box of its own, never the policy's",
    "uni-agent#176": "does not apply: nothing is pulled; images are imported ahead",
}


def test_each_report_has_the_test_that_is_named_after_its_law() -> None:
    assert len(REPORTS) + len(ELSEWHERE) == 35
    for report, tests in REPORTS.items():
        for path, name in tests:
            assert f"def {name}(" in (TESTS / path).read_text(), (report, path, name)


def test_a_pool_whose_commands_all_timed_out_serves_the_next(lab: Lab) -> None:
    async def run() -> None:
        async def late() -> ExecOutcome:
            async with lab.pool.acquire(timeout=60) as box:
                return (await box.exec(["sleep", "100"], wall_seconds=0.05)).outcome

        assert set(await asyncio.gather(*(late() for _ in range(20)))) == {ExecOutcome.timeout_wall}
        async with lab.pool.acquire(timeout=60) as box:
            assert (await box.exec(["true"])).ok

    lab.run(run())


def test_output_that_was_cut_says_so(lab: Lab) -> None:
    result = lab.python("print('x' * 5_000_000)", output_bytes=200_000)
    assert result.outcome is ExecOutcome.output_limit
    assert (len(result.stdout), result.stdout_truncated, result.stderr_truncated) == (200_000, True, False)


_TREE = "setsid sleep 100 & nohup sleep 100 & sleep 100"


def test_nothing_of_a_command_runs_on_after_its_timeout(lab: Lab) -> None:
    async def late(box: Box) -> None:
        result = await box.exec(["sh", "-c", _TREE], wall_seconds=0.2)
        assert result.outcome is ExecOutcome.timeout_wall
        assert [line for line in alive(payload_uid(box)) if line] == []

    lab.with_box(late)


def test_a_port_that_a_timed_out_command_s_child_held_is_free(lab: Lab) -> None:
    hold = "import os, socket, time\ns = socket.create_server(('127.0.0.1', 8080))\n" + (
        "if not os.fork(): os.setsid()\nprint('held', flush=True)\ntime.sleep(100)"
    )
    take = "import socket\nsocket.create_server(('127.0.0.1', 8080)); print('free')"

    async def run(box: Box) -> None:
        late = await box.exec(["python3", "-c", hold], wall_seconds=5, idle_seconds=1)
        assert late.outcome in (ExecOutcome.timeout_idle, ExecOutcome.timeout_wall)
        assert b"held" in late.stdout
        assert said(await box.exec(["python3", "-c", take])) == "free"

    lab.with_box(run)


def test_a_command_without_limits_of_its_own_has_some() -> None:
    default = inspect.signature(NativeBox.exec).parameters
    cpu, output = default["cpu_seconds"].default, default["output_bytes"].default
    limits = Command.limits(cpu, default["wall_seconds"].default, None, output)
    assert limits.cpu_ns < limits.wall_ns < 60e9
    assert 0 < limits.output_bytes < 1 << 24


def test_a_pool_never_has_more_boxes_than_its_size(lab: Lab) -> None:
    async def run() -> None:
        async def use() -> None:
            async with lab.pool.acquire(timeout=60) as box:
                await box.exec(["true"])
            stats = await lab.pool.stats()
            assert stats.created - stats.destroyed <= stats.size, stats

        for _ in range(5):
            await asyncio.gather(*(use() for _ in range(3 * lab.pool.size)))

    lab.run(run())


def test_no_python_of_ours_runs_between_fork_and_exec() -> None:
    """In a process with threads it may deadlock. The warm interpreter has none, and is not our process."""
    ours = (p for p in Path(tiltyard.sandbox.__file__).parent.rglob("*.py") if p.name != "zygote.py")
    for path in ours:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword):
                assert node.arg != "preexec_fn", path
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) not in ("os.fork", "os.forkpty", "pty.fork"), path


OUT = """
import asyncio, os, resource
from tiltyard.sandbox import SandboxError, WarmPool, Limits
held = []
def exhaust():
    try:
        while True:
            held.append(os.open("/dev/null", 0))
    except OSError:
        pass
async def main():
    limits = Limits(memory_mb=64, disk_mb=8)
    async with WarmPool(size=2, limits=limits) as pool:
        async with pool.acquire() as box:
            assert (await box.exec(["true"])).ok
            used = max(map(int, os.listdir("/proc/self/fd"))) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, 4096))
            exhaust()
            assert (await box.exec(["true"])).ok, "what needs no descriptor goes on"
        told = []
        for _ in range(6):
            exhaust()
            try:
                async with pool.acquire(timeout=1) as box:
                    await box.exec(["true"])
            except (SandboxError, OSError) as error:
                told.append(error)
        for fd in held:
            os.close(fd)
        for _ in range(600):
            try:
                async with pool.acquire(timeout=1) as box:
                    assert (await box.exec(["true"])).ok
                    break
            except SandboxError:
                await asyncio.sleep(0.1)
        else:
            raise SystemExit("it does not go on")
        print("goes on,", "told" if any("descriptor" in str(error) for error in told) else told)
asyncio.run(main())
"""


def test_an_owner_out_of_descriptors_is_told_and_goes_on_when_it_has_some(lab: Lab) -> None:
    del lab  # it skips where no box can be made
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (-1,) and hard < 4096:
        pytest.skip(f"the hard limit of descriptors is {hard}, soft {soft}")
    ran = subprocess.run([sys.executable, "-c", OUT], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "goes on, told\n"), ran.stderr
