"""How often a long-lived process looks for garbage that reference counts leave.

Guarantees: what is there at the start is never looked at again, and the young are looked at in large batches.
Does not: change what is freed, or when a reference count reaches zero.

Source: https://docs.python.org/3/library/gc.html#gc.freeze."""

import gc

THRESHOLDS = (20_000, 20, 20)
"""New containers before the youngest are looked at, and how many looks before the older ones."""


def look_seldom() -> None:
    """Called once, by a composition root whose parts are made: a tenth of a runner's time went into looking
    at modules and at episodes under way, which are no garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
