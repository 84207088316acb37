"""Other ways to run a command apart, measured with the same work in the same run."""

from .measure import measure

__all__ = ["measure"]
