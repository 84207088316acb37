"""Policies as Hugging Face folders: made fresh, loaded, saved.

Guarantees: `AutoModelForCausalLM` and `AutoTokenizer` load what is saved here; equal weights give equal
bytes.
Does not: unpickle anything: weights are safetensors."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tiltyard.contracts.run_config import FreshPolicy

BYTES = 256
SPECIAL = ("<pad>", "<bos>", "<eos>")
"""Ids 256, 257 and 258."""
PAD, BOS, EOS = range(BYTES, BYTES + len(SPECIAL))


class Policy:
    """A model with its tokenizer, on one device."""

    def __init__(self, model: Any, tokenizer: Any, device: str) -> None:
        self.model = model.to(device)
        self.tokenizer = tokenizer
        self.device = device

    @property
    def pad(self) -> int:
        """An id to pad with; masked wherever it stands."""
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(i for i in ids if i is not None)

    def save(self, folder: Path) -> None:
        """Write config, weights and tokenizer into an empty folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def encode(self, prompt: str, completion: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of a prompt as the rollout service makes them, and of a completion that ends the message."""
        ids = self.tokenizer(completion, add_special_tokens=False).input_ids
        end = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        return tuple(self.tokenizer(prompt).input_ids), (*ids, *end)


def fresh(config: FreshPolicy, *, seed: int, device: str) -> Policy:
    """A byte-level Llama with random weights drawn from `seed`."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=BYTES + len(SPECIAL),
            hidden_size=config.hidden_size,
            intermediate_size=round(config.hidden_size * config.mlp_ratio),
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.max_positions,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
    )
    return Policy(model, byte_tokenizer(config.max_positions), device)


def load(folder: Path, device: str) -> Policy:
    """A policy from a Hugging Face folder; code that comes with it is never run."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
    )
    return Policy(model, AutoTokenizer.from_pretrained(folder, trust_remote_code=False), device)


def byte_tokenizer(length: int) -> PreTrainedTokenizerFast:
    """Id b for byte b, and `<bos>` in front of every prompt."""
    core = Tokenizer(models.BPE(vocab=_byte_symbols(), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        model_max_length=length,
        clean_up_tokenization_spaces=False,
    )


def _byte_symbols() -> dict[str, int]:
    """The printable character that byte-level tokenizers write for each byte (Radford et al., GPT-2,
    2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(BYTES) if b not in set(printable)]
    symbols = {chr(b): b for b in printable}
    return symbols | {chr(BYTES + i): b for i, b in enumerate(hidden)}
