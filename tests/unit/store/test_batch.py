"""A batch commits together what arrives together, and one spoilt item spoils nobody else."""

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy.exc import OperationalError

from tiltyard.store.batch import Batch


def test_items_that_arrive_meanwhile_share_the_next_transaction() -> None:
    sizes: list[int] = []
    release = asyncio.Event()

    async def flush(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        await release.wait()
        return [item * 2 for item in items]

    async def main() -> list[int]:
        batch = Batch(flush, limit=4)
        tasks = [asyncio.create_task(batch.submit(n)) for n in range(1)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(batch.submit(n)) for n in range(1, 8)]
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [n * 2 for n in range(8)]
    assert sizes == [1, 4, 3]


def test_a_lone_item_waits_for_others_only_as_long_as_it_is_told() -> None:
    sizes: list[int] = []

    async def flush(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        return list(items)

    async def main() -> None:
        batch = Batch(flush, limit=3, linger=0.05)
        await batch.submit(1)
        patient = Batch(flush, limit=3, linger=3600)
        await asyncio.gather(*(patient.submit(n) for n in range(3)))

    asyncio.run(main())
    assert sizes == [1, 3]


def test_an_item_that_spoils_its_transaction_fails_alone() -> None:
    async def flush(items: Sequence[int]) -> list[int]:
        if 3 in items:
            raise ValueError("three")
        return list(items)

    async def main() -> list[int | BaseException]:
        batch = Batch(flush)
        return await asyncio.gather(*(batch.submit(n) for n in range(5)), return_exceptions=True)

    results = asyncio.run(main())
    assert [r for r in results if isinstance(r, int)] == [0, 1, 2, 4]
    assert isinstance(results[3], ValueError)


def test_a_database_that_is_away_is_asked_once() -> None:
    calls = 0

    async def flush(items: Sequence[int]) -> list[int]:
        nonlocal calls
        calls += 1
        raise OperationalError("commit", {}, Exception("away"))

    async def main() -> None:
        batch = Batch(flush)
        results = await asyncio.gather(*(batch.submit(n) for n in range(5)), return_exceptions=True)
        assert all(isinstance(r, OperationalError) for r in results)

    asyncio.run(main())
    assert calls == 1


def test_a_cancelled_submitter_does_not_disturb_the_others() -> None:
    async def flush(items: Sequence[int]) -> list[int]:
        await asyncio.sleep(0)
        return list(items)

    async def main() -> int:
        batch = Batch(flush)
        gone = asyncio.create_task(batch.submit(1))
        kept = asyncio.create_task(batch.submit(2))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await kept

    assert asyncio.run(main()) == 2
