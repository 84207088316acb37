"""Who joins which batch, and what one failure costs."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from services.rollout.engine import Ask, EngineClosed, EngineFailed, InvalidPrompt, Overloaded, Policy
from services.rollout.scheduler import QUEUED_PER_ROW, Scheduler
from services.rollout.scripted_engine import ScriptedPolicy
from services.rollout.sequence import Sequence

NEW, OLD = (ScriptedPolicy(run_id="r", version=v) for v in (2, 1))


class Letters:
    """A batch that says `a` to everybody, and breaks down on a prompt `break`."""

    made: "list[Letters]"

    def __init__(self, policy: Policy) -> None:
        self.policy, self.rows, self.largest = policy, list[Sequence](), 0
        self.steps = 0
        self.made.append(self)

    def admit(self, sequences: list[Sequence]) -> list[Sequence]:
        self.rows += sequences
        self.largest = max(self.largest, len(self.rows))
        return self.step()

    def step(self) -> list[Sequence]:
        self.steps += 1
        if any(row.ask.prompt == "break" for row in self.rows):
            raise RuntimeError("the device is gone")
        ended = [row for row in self.rows if row.cancelled or row.accept(97, -1.0)]
        self.rows = [row for row in self.rows if row not in ended]
        return ended


@contextmanager
def scheduler(most: int) -> Iterator[tuple[Scheduler, list[Letters]]]:
    kind = type("Recorded", (Letters,), {"made": []})
    engine = Scheduler(kind, max_batch=most)
    try:
        yield engine, kind.made
    finally:
        engine.close()


def ask(prompt: str = "p", tokens: int = 3) -> Ask:
    return Ask(prompt=prompt, max_tokens=tokens)


def chosen(policy: Policy) -> Callable[[], Policy]:
    return lambda: policy


def test_no_more_run_together_than_may_and_all_get_their_turn() -> None:
    async def go(engine: Scheduler) -> list[int]:
        answers = await asyncio.gather(
            *(engine.generate(chosen(NEW), ask(tokens=1 + i % 9)) for i in range(50))
        )
        return [len(answer.token_ids) for answer in answers]

    with scheduler(4) as (engine, batches):
        assert asyncio.run(go(engine)) == [1 + i % 9 for i in range(50)]
        assert max(batch.largest for batch in batches) <= 4


def test_versions_never_share_a_batch_and_neither_starves() -> None:
    async def go(engine: Scheduler) -> list[int]:
        asks = (engine.generate(chosen(NEW if i % 2 else OLD), ask(tokens=5)) for i in range(40))
        return [answer.policy.version for answer in await asyncio.gather(*asks)]

    with scheduler(8) as (engine, batches):
        assert asyncio.run(go(engine)) == [2 if i % 2 else 1 for i in range(40)]
        assert {batch.policy.version for batch in batches} == {1, 2}


def test_the_policy_is_chosen_when_generation_begins() -> None:
    current = [OLD]

    async def go(engine: Scheduler) -> int:
        first = asyncio.create_task(engine.generate(chosen(OLD), ask(tokens=100_000)))
        await asyncio.sleep(0.05)
        late = asyncio.create_task(engine.generate(lambda: current[0], ask()))
        await asyncio.sleep(0.02)
        current[0] = NEW
        first.cancel()
        return (await late).policy.version

    with scheduler(1) as (engine, _):
        assert asyncio.run(go(engine)) == 2


def test_a_failure_costs_its_own_batch_alone() -> None:
    async def go(engine: Scheduler) -> list[object]:
        doomed = [engine.generate(chosen(OLD), ask("break", 50)), engine.generate(chosen(OLD), ask("p", 50))]
        healthy = [engine.generate(chosen(NEW), ask("p", 50)) for _ in range(3)]
        results = await asyncio.gather(*doomed, *healthy, return_exceptions=True)
        again = await engine.generate(chosen(OLD), ask())
        return [*results, again]

    with scheduler(8) as (engine, _):
        *results, again = asyncio.run(go(engine))
    assert [type(r) for r in results[:2]] == [EngineFailed, EngineFailed]
    assert "device is gone" not in str(results[0]), "internals stay in the log"
    assert not any(isinstance(r, BaseException) for r in [*results[2:], again])


def test_a_refused_prompt_leaves_its_neighbours_alone() -> None:
    async def go(engine: Scheduler) -> list[object]:
        wrong = engine.generate(chosen(NEW), Ask(prompt=(), max_tokens=1))
        right = engine.generate(chosen(NEW), ask())
        return list(await asyncio.gather(wrong, right, return_exceptions=True))

    with scheduler(8) as (engine, _):
        wrong, right = asyncio.run(go(engine))
    assert isinstance(wrong, InvalidPrompt)
    assert not isinstance(right, BaseException)


def test_a_cancelled_request_frees_its_place() -> None:
    async def go(engine: Scheduler) -> None:
        endless = [asyncio.create_task(engine.generate(chosen(NEW), ask(tokens=100_000))) for _ in range(2)]
        await asyncio.sleep(0.05)
        for task in endless:
            task.cancel()
        await asyncio.wait_for(engine.generate(chosen(NEW), ask()), 30)

    with scheduler(2) as (engine, _):
        asyncio.run(go(engine))


def test_a_full_queue_refuses() -> None:
    async def go(engine: Scheduler) -> None:
        running = asyncio.create_task(engine.generate(chosen(NEW), ask(tokens=1_000_000)))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(engine.generate(chosen(NEW), ask())) for _ in range(QUEUED_PER_ROW)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="try again later"):
            await engine.generate(chosen(NEW), ask())
        for task in (running, *waiting):
            task.cancel()

    with scheduler(1) as (engine, _):
        asyncio.run(go(engine))


def test_closing_tells_everyone_who_waits() -> None:
    async def go(engine: Scheduler) -> list[object]:
        tasks = [asyncio.create_task(engine.generate(chosen(NEW), ask(tokens=1_000_000))) for _ in range(3)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    with scheduler(1) as (engine, _):
        assert [type(error) for error in asyncio.run(go(engine))] == [EngineClosed] * 3
