"""What hostile code tries, attack by attack, and whether a backend's boxes withstand it.

Guarantees: each attack is really made, in a fresh box, through `Box`'s own calls; one that was not says why.
Does not: prove that there is no other. A row's number always means the same attack."""

from .attack import Arena, Attack, Finding, Verdict, assail
from .rows import ATTACKS

__all__ = ["ATTACKS", "Arena", "Attack", "Finding", "Verdict", "assail"]
