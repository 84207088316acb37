"""A bench's sheet: a part that fails is data with a kind, and the others are measured."""

import pytest

from services.cli.bench.sheet import Kind, Sheet


def _sheet(*, part_seconds: float = 60.0, seconds: float = 60.0) -> Sheet:
    return Sheet(part_seconds=part_seconds, seconds=seconds)


def test_a_part_that_fails_leaves_the_figures_of_the_others() -> None:
    sheet = _sheet()
    with sheet.part("first"):
        sheet.put("postgres", {"a": 1})
    with sheet.part("second"):
        raise RuntimeError("the engine is away")
    with sheet.part("third"):
        sheet.put("postgres", {"b": 2})
    assert sheet.figures == {"postgres": {"a": 1, "b": 2}}
    (failed,) = sheet.failures
    assert (failed.part, failed.kind) == ("second", Kind.CRASHED)
    assert "the engine is away" in failed.reason
    assert set(sheet.took) == {"first", "second", "third"}


def test_a_part_whose_time_is_over_is_too_slow_and_what_it_had_is_kept() -> None:
    sheet = _sheet()
    with sheet.part("slow"):
        sheet.put("postgres", {"a": 1})
        raise TimeoutError("still waiting")
    assert sheet.figures == {"postgres": {"a": 1}}
    assert [f.kind for f in sheet.failures] == [Kind.TOO_SLOW]


def test_no_part_begins_when_all_time_is_over() -> None:
    sheet, begun = _sheet(seconds=0.0), []
    with sheet.part("late"):
        sheet.left()
        begun.append("late")
    with sheet.part("later", seconds=100.0):
        sheet.left()
        begun.append("later")
    assert begun == []
    assert [f.kind for f in sheet.failures] == [Kind.NO_TIME, Kind.NO_TIME]


def test_a_part_has_no_more_time_than_the_part_that_holds_it() -> None:
    sheet = _sheet(part_seconds=1_000.0, seconds=10_000.0)
    with sheet.part("outer", seconds=5.0):
        with sheet.part("inner"):
            assert sheet.left() <= 5.0
        assert sheet.left() <= 5.0
    with sheet.part("after"):
        assert 5.0 < sheet.left() <= 1_000.0
    assert sheet.failures == []


def test_an_interruption_is_told_once_and_goes_on() -> None:
    class Stop(BaseException):
        pass

    sheet = _sheet()

    def measure() -> None:
        with sheet.part("outer"), sheet.part("inner"):
            sheet.put("postgres", {"a": 1})
            raise Stop

    with pytest.raises(Stop):
        measure()
    assert [(f.part, f.kind) for f in sheet.failures] == [("inner", Kind.INTERRUPTED)]
    assert sheet.figures == {"postgres": {"a": 1}}
