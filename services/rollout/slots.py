"""The attention cache of a batch: one slot a sequence, written in place.

Guarantees: a step writes one column a row and copies nothing else; a sequence that leaves costs the move of
one other into its slot; rows of different lengths share a cache without padding.
Does not: hold the state of models without plain keys and values for each layer (state-space models)."""

from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

COLUMNS_STEP = 64


class _Aim:
    """Where the next forward pass writes: column `columns_B[i]` of row i, of `width` columns in use."""

    rows_B: torch.Tensor
    columns_B: torch.Tensor
    width: int


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [slots, heads, columns, head size]."""

    def __init__(self, aim: _Aim, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self._aim, self.is_initialized = aim, True
        self.all_keys, self.all_values = (x.new_zeros(0, x.shape[1], 0, x.shape[3]) for x in (keys, values))

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: a slot layer is made ready."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one column a row, and show the columns in use."""
        aim, rows = self._aim, len(key_states)
        self.all_keys[aim.rows_B, :, aim.columns_B] = key_states[:, :, 0]
        self.all_values[aim.rows_B, :, aim.columns_B] = value_states[:, :, 0]
        return self.all_keys[:rows, :, : aim.width], self.all_values[:rows, :, : aim.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._aim.width, 0

    def get_seq_length(self) -> int:
        return self._aim.width - 1

    def get_max_length(self) -> int:
        return -1


class SlotCache(Cache):
    """A cache that grows to the rows and columns that its sequences need."""

    def __init__(self, like: DynamicCache) -> None:
        self._aim = _Aim()
        self.rows = self.columns = 0
        self._slots = [_SlotLayer(self._aim, keys, values) for keys, values in _states(like)]
        super().__init__(layers=list(self._slots))

    def aim(self, columns_B: torch.Tensor, width: int) -> None:
        """The next forward pass writes row i's column `columns_B[i]`, and attends to `width` columns."""
        self._aim.rows_B = torch.arange(len(columns_B), device=columns_B.device)
        self._aim.columns_B, self._aim.width = columns_B, width

    def reserve(self, rows: int, columns: int) -> None:
        """Have room for so many rows and columns, keeping what is there."""
        if rows <= self.rows and columns <= self.columns:
            return
        self.rows = max(1 << (rows - 1).bit_length(), self.rows)
        self.columns = max(-(-columns // COLUMNS_STEP) * COLUMNS_STEP, self.columns)
        for layer in self._slots:
            layer.all_keys = _grown(layer.all_keys, self.rows, self.columns)
            layer.all_values = _grown(layer.all_values, self.rows, self.columns)

    def place(self, prefilled: DynamicCache, sources: list[int], first: int, width: int) -> None:
        """Copy row `sources[i]` of a prefilled cache, `width` columns of it, into slot `first + i`."""
        last = first + len(sources)
        for layer, (keys, values) in zip(self._slots, _states(prefilled), strict=True):
            layer.all_keys[first:last, :, :width] = keys[sources]
            layer.all_values[first:last, :, :width] = values[sources]

    def move(self, sources: list[int], targets: list[int], width: int) -> None:
        """Copy the first `width` columns of some slots over others."""
        for layer in self._slots:
            for states in (layer.all_keys, layer.all_values):
                states[targets, :, :width] = states[sources, :, :width]


def _states(cache: DynamicCache) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer. Raises ValueError for a layer that has none."""
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor):
            raise ValueError(f"a layer of kind {type(layer).__name__} has no keys and values to cache")
        yield keys, values


def _grown(old: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    new = old.new_zeros(rows, old.shape[1], columns, old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
