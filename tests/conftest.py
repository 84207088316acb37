"""What holds for all tests: asserts of shared suites explain themselves, no property test is timed, and the
environment of one test is not the next one's."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tiltyard.testing.object_store", "tiltyard.testing.transport")
settings.register_profile("tiltyard", deadline=None)
settings.load_profile("tiltyard")


@pytest.fixture(autouse=True)
def environment_kept() -> Iterator[None]:
    """A test that changes `os.environ` by hand fails itself, not a stranger that runs after it."""
    before = os.environ.copy()
    yield
    after = os.environ | {"PYTEST_CURRENT_TEST": before["PYTEST_CURRENT_TEST"]}
    assert after == before, "the test changed os.environ: use monkeypatch.setenv"
