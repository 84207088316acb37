"""Every report that docs/dispatch.md answers is answered by a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def _named() -> list[str]:
    text = (ROOT / "docs" / "dispatch.md").read_text()
    return sorted(set(re.findall(r"`(test_[a-z0-9_]+)`", text)))


@pytest.fixture(scope="module")
def defined() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"def (test_[a-z0-9_]+)", file.read_text())}


@pytest.mark.parametrize("name", _named())
def test_a_test_that_the_documentation_names_exists(name: str, defined: set[str]) -> None:
    assert name in defined, f"docs/dispatch.md names {name}, which no test file defines"
