"""The fake store obeys the laws of the real ones."""

import pytest

from tiltyard.objects import ObjectStore
from tiltyard.testing.object_store import MemoryStore, ObjectStoreLaws


class TestMemoryStore(ObjectStoreLaws):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()
