"""Sequences of one policy, decoded together with a cache.

Guarantees: equal prompts that are admitted together are computed once; a sequence that ends frees its slot at
once, and others join between steps; no row sees another.
Does not: wait for company, or choose whom to admit (`scheduler`)."""

from collections.abc import Iterator

import torch
from transformers.cache_utils import DynamicCache

from services.rollout.checkpoint_policy import CheckpointPolicy
from services.rollout.sampling import draw
from services.rollout.sequence import Sequence
from services.rollout.slots import SlotCache

PREFILL_TOKENS = 8_192
"""Prompt tokens, padding included, in one forward pass; one longer prompt may exceed it."""


class TorchBatch:
    """Rows i of `rows` and of the cache belong together."""

    def __init__(self, policy: CheckpointPolicy) -> None:
        self.rows: list[Sequence] = []
        self._policy = policy
        self._cache: SlotCache | None = None
        self._windows = _windows(policy.model.config.get_text_config())

    @torch.inference_mode()
    def admit(self, sequences: list[Sequence]) -> list[Sequence]:
        """Prefill the prompts and draw each sequence's first token; those that end with it are returned."""
        ended: list[Sequence] = []
        for prompts in _chunks(sequences):
            ended += self._prefill(prompts)
        return ended

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Draw each row's next token; those that end, or were cancelled, leave and are returned."""
        gone = self._leave([i for i, row in enumerate(self.rows) if row.cancelled])
        if not self.rows:
            return gone
        tokens, logprobs = draw(self._forward(), self.rows)
        ended = [i for i, row in enumerate(self.rows) if row.accept(tokens[i], logprobs[i])]
        return gone + self._leave(ended)

    def _forward(self) -> torch.Tensor:
        """Logits behind the last token of each row, [rows, vocabulary]."""
        assert self._cache is not None, "rows have been prefilled"
        device = self._policy.model.device
        tokens_B = torch.tensor([row.tokens[-1] for row in self.rows], device=device)
        columns_B = torch.tensor([row.length - 1 for row in self.rows], device=device)
        width = max(row.length for row in self.rows)
        self._cache.reserve(len(self.rows), width)
        self._cache.aim(columns_B, width)
        out = self._policy.model(
            input_ids=tokens_B[:, None],
            position_ids=columns_B[:, None],
            attention_mask=self._masks(columns_B, width),
            use_cache=True,
            **{self._policy.cache_argument: self._cache},
        )
        return self._allowed(out.logits[:, -1].float())

    def _masks(self, columns_B: torch.Tensor, width: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Which columns each row attends to, [rows, 1, 1, width]; by kind of layer where there are two."""
        places_W = torch.arange(width, device=columns_B.device)
        seen_BW = places_W <= columns_B[:, None]
        masks = {
            kind: (seen_BW if window is None else seen_BW & (places_W > columns_B[:, None] - window))[
                :, None, None
            ]
            for kind, window in self._windows.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _allowed(self, logits_BV: torch.Tensor) -> torch.Tensor:
        if self._policy.suppressed is not None:
            logits_BV[:, self._policy.suppressed] = float("-inf")
        return logits_BV

    def _prefill(self, prompts: dict[tuple[int, ...], list[Sequence]]) -> list[Sequence]:
        """Compute each distinct prompt once, and let its sequences draw from it."""
        cache = DynamicCache()
        logits_PV = self._prompt_logits(list(prompts), cache)
        members = [(p, s) for p, same in enumerate(prompts.values()) for s in same]
        rows = [s for _, s in members]
        tokens, logprobs = draw(logits_PV[[p for p, _ in members]], rows)
        live, ended = [], []
        for (p, sequence), token, logprob in zip(members, tokens, logprobs, strict=True):
            if sequence.accept(token, logprob):
                ended.append(sequence)
            else:
                live.append((p, sequence))
        self._settle(cache, live, max(map(len, prompts)))
        return ended

    def _prompt_logits(self, prompts: list[tuple[int, ...]], cache: DynamicCache) -> torch.Tensor:
        """Logits behind each prompt, [prompts, vocabulary]; causal attention never sees right padding."""
        device, longest = self._policy.model.device, max(map(len, prompts))
        ids_PT = torch.tensor([[*p, *[p[-1]] * (longest - len(p))] for p in prompts], device=device)
        lasts = sorted({len(p) - 1 for p in prompts})
        out = self._policy.model(
            input_ids=ids_PT,
            use_cache=True,
            logits_to_keep=torch.tensor(lasts, device=device),
            **{self._policy.cache_argument: cache},
        )
        at = [lasts.index(len(p) - 1) for p in prompts]
        return self._allowed(out.logits[list(range(len(prompts))), at].float())

    def _settle(self, prefilled: DynamicCache, live: list[tuple[int, Sequence]], width: int) -> None:
        """Give each sequence that goes on a slot."""
        if not live:
            return
        if self._cache is None:
            self._cache = SlotCache(prefilled)
        first = len(self.rows)
        longest = max(width, *(s.longest for _, s in live))
        self._cache.reserve(first + len(live), longest)
        self._cache.place(prefilled, [p for p, _ in live], first, width)
        self.rows += [s for _, s in live]

    def _leave(self, indices: list[int]) -> list[Sequence]:
        """Take rows out; the last ones move into their slots."""
        if not indices:
            return []
        gone, left = [self.rows[i] for i in indices], len(self.rows) - len(indices)
        leaving = set(indices)
        holes = [i for i in indices if i < left]
        movers = [i for i in range(left, len(self.rows)) if i not in leaving]
        if movers:
            assert self._cache is not None, "rows have slots"
            self._cache.move(movers, holes, max(self.rows[i].length for i in movers))
        for hole, mover in zip(holes, movers, strict=True):
            self.rows[hole] = self.rows[mover]
        del self.rows[left:]
        return gone


def _chunks(sequences: list[Sequence]) -> Iterator[dict[tuple[int, ...], list[Sequence]]]:
    """Distinct prompts with their sequences, in groups of like length that fit one forward pass."""
    by_prompt: dict[tuple[int, ...], list[Sequence]] = {}
    for sequence in sequences:
        by_prompt.setdefault(sequence.prompt, []).append(sequence)
    chunk: dict[tuple[int, ...], list[Sequence]] = {}
    for prompt in sorted(by_prompt, key=len):
        if chunk and len(prompt) * (len(chunk) + 1) > PREFILL_TOKENS:
            yield chunk
            chunk = {}
        chunk[prompt] = by_prompt[prompt]
    yield chunk


def _windows(config: object) -> dict[str, int | None]:
    """Columns that each kind of attention layer looks back on; None: all."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"full_attention": window}
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"layers of kind {sorted(unknown)} need a cache that this engine has not")
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}
