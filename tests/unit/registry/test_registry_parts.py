"""The registry's pure parts."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.registry import cursor
from services.registry.console import session
from services.registry.console.chart import LARGE, SMALL, Point, chart
from services.registry.console.page import ago, number, percent, span
from services.registry.evaluation import interval
from tiltyard.web.gate import host_of
from tiltyard.web.problem import Refusal
from tiltyard.web.token import BadToken, read_token

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=40))
def test_a_cursor_comes_back_as_its_key_in_its_own_list_alone(key: str) -> None:
    made = cursor.encode("tasks", key)
    assert cursor.decode("tasks", made) == key
    with pytest.raises(Refusal):
        cursor.decode("runs", made)


@given(st.text(min_size=1, max_size=60))
def test_no_text_passes_as_a_cursor(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        cursor.decode("tasks", text)
    assert refused.value.status_code == 422


@pytest.mark.parametrize("key", ["x", "-1", "1.5", "٣", ""])
def test_a_numeric_cursor_holds_a_number(key: str) -> None:
    with pytest.raises(Refusal):
        cursor.decode("steps", cursor.encode("steps", key), numeric=True)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:80", "localhost"),
        ("[::1]:8080", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("evil.com:80", "evil.com"),
        ("127.0.0.1:8080", "127.0.0.1"),
    ],
)
def test_a_host_header_gives_its_name(header: str, name: str) -> None:
    assert host_of(header) == name


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_an_interval_holds_the_mean_of_equal_values_and_lies_within_the_data(means: list[float]) -> None:
    low, high = interval(means, draws=200)
    assert min(means) - 1e-9 <= low <= high <= max(means) + 1e-9
    assert interval(means, draws=200) == (low, high)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    dice, covered = random.Random(5), 0
    for _ in range(200):
        low, high = interval([float(dice.random() < 0.4) for _ in range(80)], draws=300)
        covered += low <= 0.4 <= high
    assert 175 <= covered <= 200


def test_an_interval_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        interval([])


@given(
    st.lists(st.tuples(st.integers(0, 500), finite), min_size=1, max_size=30), st.sampled_from([LARGE, SMALL])
)
def test_a_charts_every_point_lies_inside_its_box(
    values: list[tuple[int, float]], size: tuple[float, float]
) -> None:
    points = [Point(x=float(x), y=y, low=y - 1, high=y + 1) for x, y in sorted(values)]
    made = chart(points, size=size)
    assert made is not None
    for pair in f"{made.line} {made.band}".split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= size[0]
        assert 0 <= y <= size[1]
    assert 2 <= len(made.y_ticks) <= 8
    assert all(0 <= t.at <= size[0] for t in made.x_ticks)


def test_a_chart_of_nothing_finite_is_none() -> None:
    assert chart([]) is None
    assert chart([Point(x=1, y=math.nan)]) is None


def test_a_cookie_is_good_until_it_runs_out_and_for_its_token_alone() -> None:
    value = session.mint("token", now=1_000.0)
    assert session.holds(value, "token", now=1_000.0 + session.LASTS - 1)
    assert not session.holds(value, "token", now=1_000.0 + session.LASTS + 1)
    assert not session.holds(value, "other", now=1_000.0)
    until, _, signature = value.partition(".")
    assert not session.holds(f"{int(until) + 1}.{signature}", "token", now=1_000.0)


@given(st.text(max_size=80))
def test_no_text_passes_as_a_cookie(value: str) -> None:
    assert not session.holds(value, "token", now=0.0)


def test_a_token_file_must_be_private_and_hold_a_long_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(BadToken, match="cannot be read"):
        read_token(file)
    file.write_text("a" * 32 + "\n")
    file.chmod(0o644)
    with pytest.raises(BadToken, match=f"can be read by others; run: chmod 600 {file}"):
        read_token(file)
    file.chmod(0o600)
    assert read_token(file) == "a" * 32
    for bad in ("short", "with space " * 4, "ä" * 30, ""):
        file.write_text(bad)
        with pytest.raises(BadToken, match="at least 24 printable ASCII characters"):
            read_token(file)


def test_numbers_are_written_for_people() -> None:
    assert (number(None), number(1234), number(0.5)) == ("–", "1,234", "0.50")
    assert (percent(None), percent(0.125)) == ("–", "12.5 %")
    assert [span(s) for s in (0.0123, 3, 120, 7_200, 200_000)] == ["12 ms", "3 s", "2 min", "2 h", "2 d"]
    assert ago(None) == "–"
