"""What holds for all tests: asserts of shared suites explain themselves, and no property test is timed."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tiltyard.testing.object_store", "tiltyard.testing.transport")
settings.register_profile("tiltyard", deadline=None)
settings.load_profile("tiltyard")
