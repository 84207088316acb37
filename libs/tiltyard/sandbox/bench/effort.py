"""How much is measured: few repetitions say that the bench works, many say how fast boxes are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Repetitions of each part, and seconds where a rate is measured."""

    cycles: int = 300
    execs: int = 300
    resets: int = 200
    forks: int = 100
    bombs: int = 5
    compiles: int = 10
    live_cycles: int = 200
    claims: int = 30
    """of docker's pool, and its commands"""
    runs: int = 100
    """of each peer"""
    seconds: float = 3.0
    at_once: int = 4
    """programs side by side, where a rate is measured"""

    @classmethod
    def tiny(cls) -> "Effort":
        """Seconds in all: to see that every part works here."""
        return cls(
            **dict.fromkeys(("cycles", "execs", "resets", "forks", "live_cycles", "runs"), 4),
            **dict.fromkeys(("bombs", "compiles", "claims"), 2),
            seconds=0.2,
        )
