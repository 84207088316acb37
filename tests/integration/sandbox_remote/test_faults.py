"""What goes wrong at a provider, and what must not come of it: an orphan, a wrong score, a leaked key."""

import asyncio
import logging
from typing import Any

import pytest

from tests.integration.sandbox_remote.conftest import LIMITS, TURN_SECONDS, TURNS, Abroad, until
from tiltyard.sandbox import ExecOutcome, FileFault, SandboxGone, SandboxUnavailable, WarmPool
from tiltyard.sandbox.remote.api import Api, Refused, Unanswered


async def once(abroad: Abroad, **options: Any) -> None:
    """One box, one command."""
    async with abroad.pool(**options) as pool, pool.acquire(timeout=60) as box:
        assert (await box.exec(["true"])).ok


@pytest.mark.parametrize("times", [1, 2])
def test_a_creation_whose_answer_was_lost_leaves_no_orphan(abroad: Abroad, times: int) -> None:
    async def work() -> None:
        abroad.there.faults.put(abroad.provider.create, lost=True, times=times)
        await once(abroad)
        assert abroad.alive == []
        assert len(abroad.there.made) >= 1

    abroad.run(work)


def test_a_lost_creation_is_taken_over_and_not_made_twice(abroad: Abroad) -> None:
    async def work() -> None:
        abroad.there.faults.put(abroad.provider.create, lost=True)
        async with abroad.pool() as pool, pool.acquire(timeout=60):
            assert len(abroad.alive) == 1
            assert len(abroad.there.made) == 1

    abroad.run(work)


def test_a_deployment_that_knows_no_idempotency_keys_leaves_no_orphan_either(e2b: Abroad) -> None:
    async def work() -> None:
        e2b.there.is_old = True
        e2b.there.faults.put("POST /sandboxes", lost=True)
        async with e2b.pool() as pool, pool.acquire(timeout=60) as box:
            assert (await box.exec(["true"])).ok
            assert e2b.alive == [box.id]
            assert [made["secure"] for made in e2b.there.made] == [True]
        assert e2b.alive == []

    e2b.run(work)


def test_a_creation_that_is_done_after_its_caller_gave_up_leaves_no_orphan(abroad: Abroad) -> None:
    """The client's time is over, nothing is found, another is made; then the first one comes after all."""

    async def work() -> None:
        abroad.there.is_old = True  # knows no idempotency keys
        late = "POST /sandboxes" if abroad.provider.name == "e2b" else abroad.provider.create
        abroad.there.faults.put(late, late=1.2)
        async with (
            abroad.pool(timeout_seconds=0.4, sweep_seconds=0.1) as pool,
            pool.acquire(timeout=60) as box,
        ):
            await until(lambda: len(abroad.there.made) == 2 or abroad.provider.name == "agent-sandbox")
            await until(lambda: abroad.alive == [box.id])
        assert abroad.alive == []

    abroad.run(work)


@pytest.mark.parametrize("status", [500, 504])
def test_a_provider_that_breaks_down_for_a_moment_is_asked_again(abroad: Abroad, status: int) -> None:
    async def work() -> None:
        abroad.there.faults.put(abroad.provider.create, status=status)
        await once(abroad)
        assert abroad.alive == []

    abroad.run(work)


def test_a_connection_that_is_cut_before_anything_was_done_is_made_again(abroad: Abroad) -> None:
    async def work() -> None:
        abroad.there.faults.put(abroad.provider.create, cut=True)
        await once(abroad)
        assert len(abroad.there.made) == 1

    abroad.run(work)


def test_a_refusal_for_haste_is_waited_out_as_long_as_it_says(abroad: Abroad) -> None:
    async def work() -> None:
        abroad.there.faults.put(abroad.provider.create, status=429, headers={"Retry-After": "1"})
        await once(abroad)
        name = abroad.provider.create
        came = [when for each, when in abroad.there.faults.at if each == name]
        assert came[1] - came[0] >= 1.0
        assert len(abroad.there.made) == 1

    abroad.run(work)


def test_a_provider_that_stays_broken_is_told_to_whoever_waits_and_used_again_when_it_is_back(
    e2b: Abroad,
) -> None:
    async def work() -> None:
        async with e2b.pool(size=1) as pool:
            e2b.there.faults.put("POST /v2/sandboxes", status=403, text="quota", times=3)
            async with pool.acquire(timeout=60):
                pass
            with pytest.raises(SandboxUnavailable, match="403 quota"):
                await pool.borrow(1, 60)
            for _ in range(TURNS):
                if (await pool.stats()).ready:
                    break
                await asyncio.sleep(TURN_SECONDS)
            async with pool.acquire(timeout=60) as box:
                assert (await box.exec(["true"])).ok

    e2b.run(work)


def test_a_connection_cut_within_a_command_is_the_platforms_fault_and_spoils_the_box(e2b: Abroad) -> None:
    async def work(box: Any) -> None:
        e2b.there.cut_after = 1
        result = await box.exec(["sh", "-c", "echo begun; sleep 600"])
        assert result.outcome is ExecOutcome.infra_error
        assert result.stdout == b"begun\n"
        assert "cut" in result.detail
        with pytest.raises(SandboxGone, match="cut"):
            await box.exec(["true"])

    e2b.with_box(work)


def test_a_command_whose_answer_was_lost_is_not_run_again(cluster: Abroad) -> None:
    async def work(box: Any) -> None:
        cluster.there.faults.put("POST /execute", lost=True)
        result = await box.exec(["sh", "-c", "echo once >>ran"])
        assert result.outcome is ExecOutcome.infra_error
        pod = next(iter(cluster.there.pods.values()))
        assert (pod / "ran").read_text() == "once\n"
        with pytest.raises(SandboxGone, match="cut"):
            await box.exec(["true"])

    cluster.with_box(work)


def test_a_command_that_was_not_taken_is_the_platforms_fault(abroad: Abroad) -> None:
    async def work(box: Any) -> None:
        abroad.there.faults.put(abroad.provider.execute, status=503, text="overloaded")
        result = await box.exec(["true"])
        assert result.outcome is ExecOutcome.infra_error
        assert "overloaded" in result.detail

    abroad.with_box(work)


def test_a_sandbox_that_vanished_is_gone_and_another_can_be_had(abroad: Abroad) -> None:
    async def work() -> None:
        async with abroad.pool() as pool:
            async with pool.acquire(timeout=60) as box:
                await abroad.provider.vanish(abroad.there, box.id)
                with pytest.raises(SandboxGone, match=r"no longer|deleted"):
                    await box.exec(["true"])
                with pytest.raises((SandboxGone, FileFault)):
                    await box.read("anything")
            async with pool.acquire(timeout=60) as box:
                assert (await box.exec(["true"])).ok

    abroad.run(work)


def test_a_sandbox_that_vanishes_under_a_command_ends_it(abroad: Abroad) -> None:
    async def work() -> None:
        async with abroad.pool() as pool:
            async with pool.acquire(timeout=60) as box:
                running = asyncio.create_task(box.exec(["sleep", "600"], wall_seconds=120))
                await until(lambda: abroad.there.faults.seen[abroad.provider.execute] > 0)
                await asyncio.sleep(0.3)
                await abroad.provider.vanish(abroad.there, box.id)
                try:
                    result = await asyncio.wait_for(running, 60)
                    assert result.outcome is ExecOutcome.infra_error
                except SandboxGone:
                    pass
            async with pool.acquire(timeout=60) as box:
                assert (await box.exec(["true"])).ok

    abroad.run(work)


def test_what_an_earlier_process_of_this_owner_left_is_destroyed_and_nothing_else(abroad: Abroad) -> None:
    async def work() -> None:
        plant = abroad.provider.plant
        left = [await plant(abroad.there, "me", "earlier", f"left{number}") for number in range(5)]
        others = await plant(abroad.there, "somebody", "else", "theirs")
        async with abroad.pool() as pool, pool.acquire(timeout=60) as box:
            assert not set(left) & set(abroad.alive)
            assert set(abroad.alive) == {others, box.id}
        assert abroad.alive == [others]

    abroad.run(work)


def test_what_nobody_holds_is_swept_while_what_is_held_stays(abroad: Abroad) -> None:
    async def work() -> None:
        backend = abroad.backend(sweep_seconds=0.1)
        incarnation = backend._owner.incarnation  # type: ignore[attr-defined]
        async with (
            WarmPool(image=abroad.provider.image, size=1, limits=LIMITS, backend=backend) as one,
            WarmPool(image=abroad.provider.image, size=1, limits=LIMITS, backend=backend) as two,
            one.acquire(timeout=60) as mine,
            two.acquire(timeout=60) as yours,
        ):
            stray = await abroad.provider.plant(abroad.there, "me", incarnation, "nobodys")
            await until(lambda: stray not in abroad.alive)
            assert {mine.id, yours.id} <= set(abroad.alive)
            assert (await mine.exec(["true"])).ok
            assert (await yours.exec(["true"])).ok

    abroad.run(work)


def test_a_kill_that_is_refused_at_first_is_tried_again(abroad: Abroad) -> None:
    async def work() -> None:
        abroad.there.faults.put("DELETE", status=503, times=2)
        await once(abroad)
        assert abroad.alive == []

    abroad.run(work)


def test_a_held_box_is_kept_alive_and_one_that_ended_is_told(abroad: Abroad) -> None:
    async def work() -> None:
        async with abroad.pool(life_seconds=3) as pool, pool.acquire(timeout=60) as box:

            def renewals() -> int:
                return sum(
                    count
                    for name, count in abroad.there.faults.seen.items()
                    if name.endswith(f"{box.id}/timeout") or name.startswith("PATCH")
                )

            await until(lambda: renewals() >= 1)
            await abroad.provider.vanish(abroad.there, box.id)
            before = renewals()
            await until(lambda: renewals() > before)
            with pytest.raises(SandboxGone):
                await box.exec(["true"])

    abroad.run(work)


def test_no_key_is_in_a_message_or_a_log(abroad: Abroad, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        backend = abroad.backend()
        wrong = "wrong_secret_0123456789"
        if abroad.provider.name == "e2b":
            backend._key = wrong  # type: ignore[attr-defined]
        else:
            backend._token = lambda: wrong  # type: ignore[attr-defined]
        with pytest.raises(SandboxUnavailable, match="401") as caught:
            async with WarmPool(image=abroad.provider.image, limits=LIMITS, backend=backend):
                pass
        assert wrong not in str(caught.value)
        assert wrong not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
        await once(abroad)

    abroad.run(work)
    ours = [
        record for record in caplog.records if not record.name.startswith(("httpcore", "aiohttp", "asyncio"))
    ]
    text = "\n".join(record.getMessage() for record in ours)
    for secret in ("e2b_secret", "k8s_secret", "router_secret", "wrong_secret"):
        assert secret not in text


def api(url: str, **options: Any) -> Api:
    told = {"headers": dict, "secrets": lambda: ("hush",), "per_second": 1000.0, **options}
    return Api("it", url, **told)


def test_no_more_requests_are_sent_than_the_rate_allows(e2b: Abroad) -> None:
    async def work() -> None:
        ours = api(e2b.there.url, per_second=40.0, headers=lambda: {"x-api-key": e2b.there.key})
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(ours.call("GET", "/v2/sandboxes", again=True) for _ in range(60)))
        assert loop.time() - began >= (60 - 40) / 40 - 0.001
        await ours.close()

    e2b.run(work)


def test_what_must_not_be_done_twice_is_not_sent_twice(e2b: Abroad) -> None:
    async def work() -> None:
        ours = api(e2b.there.url, headers=lambda: {"x-api-key": e2b.there.key})
        for fault in ({"status": 500}, {"cut": True}, {"lost": True}):
            e2b.there.faults.put("GET /v2/sandboxes", **fault)
            before = e2b.there.faults.seen["GET /v2/sandboxes"]
            with pytest.raises(Unanswered):
                await ours.call("GET", "/v2/sandboxes", again=False)
            assert e2b.there.faults.seen["GET /v2/sandboxes"] == before + 1
        await ours.close()

    e2b.run(work)


def test_waiting_has_an_end_and_follows_what_the_provider_says(e2b: Abroad) -> None:
    rests: list[float] = []

    async def note(seconds: float) -> None:
        rests.append(seconds)

    async def work() -> None:
        ours = api(e2b.there.url, sleep=note)
        for said in ("7", "100000", "Wed, 21 Oct 2015 07:28:00 GMT", "soon"):
            e2b.there.faults.put("GET /v2/sandboxes", status=429, headers={"Retry-After": said})
        e2b.there.faults.put("GET /v2/sandboxes", status=429, text="still: hush", times=1)
        with pytest.raises(Refused, match=r"429 still: \*\*\*") as caught:
            await ours.call("GET", "/v2/sandboxes", again=False)
        assert caught.value.status == 429
        await ours.close()

    e2b.run(work)
    assert rests[:3] == [7.0, 30.0, 0.0]
    assert 0 < rests[3] <= 30


def test_a_redirect_is_not_followed_with_a_key(e2b: Abroad) -> None:
    async def work() -> None:
        ours = api(e2b.there.url)
        e2b.there.faults.put("GET /v2", status=302, headers={"Location": "http://127.0.0.1:9/steal"})
        with pytest.raises(Refused, match="302"):
            await ours.call("GET", "/v2/sandboxes", again=True)
        await ours.close()

    e2b.run(work)
