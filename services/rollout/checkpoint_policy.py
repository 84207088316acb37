"""A Hugging Face causal language model as a policy version.

Guarantees: weights come from safetensors alone and no code of the checkpoint runs; tokens that the
checkpoint's `generation_config.json` suppresses have probability zero.
Does not: move weights between devices later."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from services.rollout.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CheckpointPolicy:
    """A loaded policy version; two are the same only when they are one object."""

    run_id: str
    version: int
    context: int
    ends: frozenset[int]
    model: PreTrainedModel
    vocabulary: Vocabulary
    size: int
    """Token ids that the embedding has."""
    suppressed: torch.Tensor | None
    """Ids that are never drawn."""
    cache_argument: str
    """How this transformers release calls the attention cache."""

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        return self.vocabulary.encode(text, special=special)

    def bytes_of(self, token: int) -> bytes:
        return self.vocabulary.bytes_of(token)

    def has(self, token: int) -> bool:
        return 0 <= token < self.size


def load_checkpoint(folder: Path, *, run_id: str, version: int, device: str) -> CheckpointPolicy:
    """The checkpoint in `folder`, ready to generate on `device`. Raises whatever is wrong with it."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype="auto", attn_implementation="sdpa"
    )
    torch.nn.Module.to(model, torch.device(device))
    model.eval().requires_grad_(False)
    suppress = _generation(folder, model).suppress_tokens
    return CheckpointPolicy(
        run_id=run_id,
        version=version,
        context=int(model.config.get_text_config().max_position_embeddings),
        ends=_ends(folder, model),
        model=model,
        vocabulary=Vocabulary(folder),
        size=int(model.config.get_text_config().vocab_size),
        suppressed=torch.tensor(suppress, device=device) if suppress else None,
        cache_argument=_cache_argument(model),
    )


def _generation(folder: Path, model: PreTrainedModel) -> Any:
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.generation_config


def _ends(folder: Path, model: PreTrainedModel) -> frozenset[int]:
    """End tokens by the generation config, else by the config, each of which may hold one or several."""
    ends = _generation(folder, model).eos_token_id
    if ends is None:
        ends = model.config.get_text_config().eos_token_id
    return frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)


def _cache_argument(model: PreTrainedModel) -> str:
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
