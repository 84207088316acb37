"""Limits that make no sense do not exist."""

from typing import Any

import pytest

from tiltyard.sandbox import InvalidLimits, Limits


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_mb": -1},
        {"memory_mb": 1.5},
        {"memory_mb": True},
        {"pids": 0},
        {"cpus": 0},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"cpus": "1"},
        {"disk_mb": 0},
        {"inodes": 1},
        {"nofile": 3},
        {"file_mb": 0},
    ],
)
def test_a_senseless_limit_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidLimits, match=next(iter(wrong))):
        Limits(**wrong)


def test_files_must_fit_beside_the_memory() -> None:
    with pytest.raises(InvalidLimits, match="held in its memory"):
        Limits(memory_mb=64, disk_mb=64)


def test_sizes_are_mebibytes_and_the_largest_file_is_the_disk_unless_said() -> None:
    limits = Limits(memory_mb=128, disk_mb=16)
    assert (limits.memory_bytes, limits.disk_bytes, limits.file_bytes) == (128 << 20, 16 << 20, 16 << 20)
    assert Limits(file_mb=2).file_bytes == 2 << 20
