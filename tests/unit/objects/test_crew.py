"""A crew does the blocking work of many coroutines, and each gets its own result or error."""

import asyncio
import threading

from tiltyard.objects.crew import MOST, Crew


def test_everyone_gets_the_result_of_their_own_piece() -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*(crew.do(lambda n=n: n * n) for n in range(500)))

    with Crew(3, name="test") as crew:
        assert asyncio.run(main()) == [n * n for n in range(500)]


def test_a_piece_that_fails_fails_its_own_caller_alone() -> None:
    def work(n: int) -> int:
        if n == 5:
            raise OSError("the disk is full")
        return n

    async def main() -> list[int | BaseException]:
        pieces = [crew.do(lambda n=n: work(n)) for n in range(12)]
        return await asyncio.gather(*pieces, return_exceptions=True)

    with Crew(1, name="test") as crew:
        results = asyncio.run(main())
    assert [r for r in results if isinstance(r, int)] == [n for n in range(12) if n != 5]
    assert isinstance(results[5], OSError)


def test_pieces_that_come_together_are_handed_over_together() -> None:
    """More pieces than one thread is given at once, and no more wakings of the loop than handings-over."""
    hands: list[int] = []

    class Counted(Crew):
        def _hand_back(self, loop, pieces) -> None:  # type: ignore[no-untyped-def]
            hands.append(len(pieces))
            super()._hand_back(loop, pieces)

    async def main() -> None:
        await asyncio.gather(*(crew.do(lambda: None) for _ in range(3 * MOST)))

    with Counted(1, name="test") as crew:
        asyncio.run(main())
    assert hands == [MOST, MOST, MOST]


def test_no_more_threads_work_than_the_crew_has() -> None:
    lock, at_once, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        threading.Event().wait(0.002)
        with lock:
            at_once -= 1

    async def main() -> None:
        await asyncio.gather(*(crew.do(work) for _ in range(60)))

    with Crew(2, name="test") as crew:
        asyncio.run(main())
    assert most <= 2


def test_a_caller_that_goes_away_leaves_the_others_their_results() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def slow() -> str:
        begun.set()
        assert go_on.wait(10)
        return "slow"

    async def main() -> list[str]:
        first = asyncio.create_task(crew.do(slow))
        assert await asyncio.to_thread(begun.wait, 10)
        gone = asyncio.create_task(crew.do(lambda: done.append("gone")))
        others = [asyncio.create_task(crew.do(lambda n=n: str(n))) for n in range(3)]
        await asyncio.sleep(0)
        gone.cancel()
        go_on.set()
        return await asyncio.gather(first, *others)

    with Crew(1, name="test") as crew:
        assert asyncio.run(main()) == ["slow", "0", "1", "2"]
    assert done == [], "nobody waited for it"


def test_a_loop_that_has_ended_is_no_error_of_the_threads() -> None:
    release = threading.Event()

    async def main() -> None:
        waiting = asyncio.create_task(crew.do(lambda: release.wait(10)))
        await asyncio.sleep(0.01)
        waiting.cancel()

    with Crew(1, name="test") as crew:
        asyncio.run(main())
        release.set()
