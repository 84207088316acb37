"""What a remote box does as any other, at both providers, and what it refuses to do."""

import asyncio
import errno
from typing import Any

import pytest

from tests.integration.sandbox_remote.conftest import LIMITS, Abroad, until
from tiltyard.sandbox import (
    CapabilityRefused,
    EntryKind,
    ExecOutcome,
    FileFault,
    FileTooLarge,
    ImageFault,
    InvalidExec,
    InvalidPath,
    Network,
    SandboxBusy,
    SandboxGone,
    SandboxPaused,
    WarmPool,
)
from tiltyard.sandbox.capability import OF_EVERY_BOX, Demand

ODD = bytes(range(256)) + b"\r\n\0'\"$(x)\xff"


def test_a_command_gets_its_stdin_environment_folder_and_files_and_its_bytes_come_back(
    abroad: Abroad,
) -> None:
    async def work(box: Any) -> None:
        await box.mkdir("deep")
        script = 'cat; printf %s "$WORD" >&2; cat ../told.txt >&2; pwd >&2; exit 3'
        result = await box.exec(
            ["sh", "-c", script],
            stdin=ODD,
            env={"WORD": "a b'c\"$d"},
            cwd="deep",
            files={"told.txt": "told\n"},
        )
        assert (result.outcome, result.exit_code) == (ExecOutcome.nonzero, 3)
        assert result.stdout == ODD
        assert result.stderr.startswith(b"a b'c\"$dtold\n/")
        assert result.stderr.endswith(b"/deep\n")
        assert (result.stdout_truncated, result.stderr_truncated) == (False, False)

    abroad.with_box(work)


ENDS = (
    (["true"], ExecOutcome.ok, 0),
    (["sh", "-c", "exit 7"], ExecOutcome.nonzero, 7),
    (["no-such-program"], ExecOutcome.nonzero, 127),
    (["sh", "-c", "kill -9 $$"], ExecOutcome.signalled, None),
    (["sh", "-c", "kill -SEGV $$"], ExecOutcome.signalled, None),
    (["true"], ExecOutcome.ok, 0),
)


def test_a_command_ends_as_it_does_anywhere(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        for argv, outcome, code in ENDS:
            result = await box.exec(argv)
            assert (result.outcome, result.exit_code) == (outcome, code), result
        printed = await box.exec(["printf", "%s|", "", "a b", "'", "\n", "ü"])
        assert printed.stdout.decode() == "|a b|'|\n|ü|"

    abroad.with_box(work)


def test_a_command_out_of_time_is_killed_and_its_box_not_used_again(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        result = await box.exec(["sh", "-c", "echo begun; sleep 600"], wall_seconds=1)
        assert result.outcome is ExecOutcome.timeout_wall
        assert result.stdout == b"begun\n"
        with pytest.raises(SandboxGone, match="out of time"):
            await box.exec(["true"])

    abroad.with_box(work)


def test_output_is_cut_at_its_bound_and_told(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        result = await box.exec(["head", "-c", "200000", "/dev/zero"], output_bytes=1000)
        assert result.outcome is ExecOutcome.output_limit
        assert (len(result.stdout), result.stdout_truncated, result.stderr_truncated) == (1000, True, False)

    abroad.with_box(work)


def test_files_go_in_and_come_out_as_they_are(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        await box.write("a/b c.bin", ODD)
        assert await box.read("a/b c.bin") == ODD
        assert await box.read(f"{box.home}/a/b c.bin") == ODD
        await box.write("run.sh", "#!/bin/sh\necho ran\n", 0o755)
        assert (await box.exec(["./run.sh"])).stdout == b"ran\n"
        await box.mkdir("empty")
        await box.mkdir("empty")
        assert await box.list("empty") == []
        await box.exec(["ln", "-s", "/etc/passwd", "link"])
        found = {entry.name: entry for entry in await box.list()}
        assert {name: entry.kind for name, entry in found.items()} == {
            "a": EntryKind.folder,
            "empty": EntryKind.folder,
            "link": EntryKind.symlink,
            "run.sh": EntryKind.file,
        }
        told = await box.stat("a/b c.bin")
        assert (told.name, told.size, told.kind) == ("b c.bin", len(ODD), EntryKind.file)
        assert found["run.sh"].mode == 0o755

    abroad.with_box(work)


def test_a_file_that_cannot_be_had_is_told_apart(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        for call in (box.read, box.list, box.stat):
            with pytest.raises(FileFault) as caught:
                await call("absent")
            assert caught.value.error == errno.ENOENT
        await box.write("large", b"x" * 5000)
        with pytest.raises(FileTooLarge, match="4999"):
            await box.read("large", 4999)
        assert len(await box.read("large", 5000)) == 5000
        for path in ("../up", "/etc/passwd", "nul\0", ""):
            with pytest.raises(InvalidPath):
                await box.write(path, b"")

    abroad.with_box(work)


def test_a_folder_goes_in_and_out_as_an_archive(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        await box.write("tree/one", b"1")
        await box.write("tree/deep/two", ODD)
        archive = await box.tar_out("tree")
        await box.tar_in(archive, "copy")
        assert await box.read("copy/deep/two") == ODD

    abroad.with_box(work)


def test_a_reset_box_is_another_sandbox_and_the_old_one_is_gone(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        before = box.id
        await box.write("left", b"")
        await box.reset()
        assert box.id != before
        assert await box.list() == []
        assert before not in abroad.alive
        assert abroad.alive == [box.id]

    abroad.with_box(work)


def test_nothing_is_left_once_a_pool_is_closed_and_no_two_holders_share_a_sandbox(abroad: Abroad) -> None:
    async def work() -> None:
        seen = []
        async with abroad.pool(size=3) as pool:
            for _ in range(3):
                async with pool.acquire_many(2, timeout=60) as boxes:
                    seen += [box.id for box in boxes]
            assert len(abroad.alive) <= 3
        assert len(set(seen)) == 6
        assert abroad.alive == []

    abroad.run(work)


def test_two_commands_at_once_are_refused_and_a_cancelled_one_spoils_its_box(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        running = asyncio.create_task(box.exec(["sleep", "600"]))
        await until(lambda: abroad.there.faults.seen[abroad.provider.execute] > 0)
        with pytest.raises(SandboxBusy):
            await box.exec(["true"])
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(SandboxGone, match="cancelled"):
            await box.exec(["true"])

    abroad.with_box(work)


@pytest.mark.parametrize("demand", OF_EVERY_BOX)
def test_what_a_provider_does_not_enforce_is_refused_unless_accepted_by_name(
    abroad: Abroad, demand: Demand
) -> None:
    accepted = [each for each in OF_EVERY_BOX if each is not demand]
    abroad.there.url = "http://127.0.0.1:9"  # nobody is asked
    able = abroad.backend().capabilities()[demand]  # type: ignore[attr-defined]
    if able.enforced:
        abroad.backend(accept=accepted)
    else:
        with pytest.raises(CapabilityRefused, match=f"{demand}: .*--accept {demand}, or accept= in Python"):
            abroad.backend(accept=accepted)


def test_calls_that_a_provider_has_nothing_for_are_refused_with_the_reason(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        for call in (
            lambda: box.start(["true"]),
            lambda: box.connect(80),
            lambda: box.listen(3128),
            box.snapshot,
            box.stats,
            box.survey,
            lambda: box.exec(["true"], fds={3: 0}),
            lambda: box.exec(["true"], tty=(24, 80)),
            lambda: box.exec(["true"], idle_seconds=1),
        ):
            with pytest.raises(CapabilityRefused, match="has no"):
                await call()
        with pytest.raises(CapabilityRefused):
            box.expose(80)
        assert (await box.exec(["true"])).ok

    abroad.with_box(work)


def test_a_paused_box_is_kept_and_goes_on(e2b: Abroad) -> None:
    async def work(box: Any) -> None:
        await box.write("kept", b"1")
        e2b.there.faults.put("POST /sandboxes/", lost=True)
        await box.pause()
        await box.pause()
        assert [each.paused for each in e2b.there.machines.values() if each.id == box.id] == [True]
        for call in (lambda: box.exec(["true"]), lambda: box.read("kept")):
            with pytest.raises(SandboxPaused, match="resume"):
                await call()
        await box.resume()
        await box.resume()
        assert await box.read("kept") == b"1"
        await box.pause()
        await box.reset()
        assert not box.paused
        assert (await box.exec(["true"])).ok
        await box.pause()

    e2b.with_box(work)


def test_a_backend_that_cannot_pause_says_so(cluster: Abroad) -> None:
    async def work(box: Any) -> None:
        with pytest.raises(CapabilityRefused, match="loses its processes"):
            await box.pause()
        assert (await box.exec(["true"])).ok

    cluster.with_box(work)


def test_a_network_through_our_proxy_is_refused(abroad: Abroad) -> None:
    async def work() -> None:
        async with abroad.pool() as pool:
            with pytest.raises(CapabilityRefused, match="ports"):
                async with pool.acquire(timeout=60, network=Network(allow=["example.org:443"])):
                    pass

    abroad.run(work)


@pytest.mark.parametrize("image", ["host", "no-such-image"])
def test_an_image_that_the_provider_lacks_is_an_image_fault(abroad: Abroad, image: str) -> None:
    async def work() -> None:
        if abroad.provider.name == "agent-sandbox":
            abroad.there.reason = "WarmPoolNotFound"
        with pytest.raises(ImageFault):
            async with WarmPool(image=image, size=1, limits=LIMITS, backend=abroad.backend()):
                pass

    abroad.run(work)


def test_arguments_that_are_no_text_are_refused(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        with pytest.raises(InvalidExec, match="UTF-8"):
            await box.exec(["echo", b"\xff"])

    abroad.with_box(work)


def test_output_comes_as_it_is_written_where_the_provider_streams(e2b: Abroad, cluster: Abroad) -> None:
    async def stream(box: Any) -> None:
        heard: list[tuple[str, bytes]] = []
        result = await box.exec(
            ["sh", "-c", "echo one; echo two >&2"], on_output=lambda *part: heard.append(part)
        )
        assert sorted(heard) == [("stderr", b"two\n"), ("stdout", b"one\n")]
        assert (result.ok, result.stdout) == (True, b"")

    async def refuse(box: Any) -> None:
        with pytest.raises(CapabilityRefused, match="streaming"):
            await box.exec(["true"], on_output=lambda *part: None)

    e2b.with_box(stream)
    cluster.with_box(refuse)


def test_a_template_above_the_limits_is_refused_and_its_sandbox_destroyed(e2b: Abroad) -> None:
    async def work() -> None:
        e2b.there.size["memoryMB"] = 4096
        accepted = [each for each in OF_EVERY_BOX if each is not Demand.memory]
        with pytest.raises(CapabilityRefused, match=r"memory 4096, above the limit of 256"):
            async with e2b.pool(accept=accepted):
                pass
        assert e2b.alive == []
        async with e2b.pool(accept=OF_EVERY_BOX) as pool, pool.acquire(timeout=60) as box:
            assert (await box.exec(["true"])).ok

    e2b.run(work)


def test_a_time_above_what_the_router_allows_is_refused(cluster: Abroad) -> None:
    async def work(box: Any) -> None:
        with pytest.raises(InvalidExec, match="at most 5"):
            await box.exec(["true"], wall_seconds=6)

    cluster.with_box(work, exec_seconds=5)


def test_a_box_reaches_no_host_unless_its_backend_was_told_to_let_it(e2b: Abroad) -> None:
    async def work() -> None:
        for internet in (False, True):
            async with e2b.pool(internet=internet):
                assert e2b.there.made[-1]["allow_internet_access"] is internet
                assert e2b.there.made[-1]["secure"] is True

    e2b.run(work)
