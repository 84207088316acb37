"""The fake transport obeys the laws of the real ones."""

import pytest

from tiltyard.testing.transport import MemoryTransport, Transport, TransportLaws


class TestMemoryTransport(TransportLaws):
    @pytest.fixture
    def transport(self) -> Transport:
        return MemoryTransport()
