"""Every attack, by its number."""

from . import exhaustion, handling, isolation

ATTACKS = tuple(sorted((*exhaustion.ROWS, *isolation.ROWS, *handling.ROWS), key=lambda attack: attack.row))
