"""Random numbers that depend on a seed and a place alone.

Guarantees: the number at (key, place) is the same whoever else is in the batch, on every machine.
Does not: serve cryptography."""

import numpy as np
from numpy.typing import NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MASK = 2**64 - 1


def key_of(seed: int, choice: int = 0) -> int:
    """64 bits for one choice of a request."""
    return int(_mixed(np.array([seed & MASK], np.uint64) + GAMMA * np.array([choice + 1], np.uint64))[0])


def uniform(keys: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each key and place (equally many), 53 bits each.

    splitmix64: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
    bits = _mixed(keys + GAMMA * (places + np.uint64(1))) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
