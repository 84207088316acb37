"""Tiny checkpoints in Hugging Face's layout, made on the spot."""

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from services.rollout.checkpoint_policy import CheckpointPolicy, load_checkpoint

PAD, BOS, EOS, SIZE = 256, 257, 258, 259


def save_llama(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A byte-level Llama with random weights whose samples vary."""
    config = {
        "vocab_size": SIZE,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "initializer_range": 0.3,
        **changes,
    }
    torch.manual_seed(seed)
    return save(folder, LlamaForCausalLM(LlamaConfig(**config)))


def save_sliding(folder: Path, *, seed: int = 0) -> Path:
    """A Gemma 3 whose layers look back on 8 columns and on all, in turn."""
    torch.manual_seed(seed)
    config = Gemma3TextConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=96,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=0.3,
    )
    return save(folder, Gemma3ForCausalLM(config))


def save(folder: Path, model: PreTrainedModel) -> Path:
    """A model and the byte-level tokenizer in a folder."""
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def byte_tokenizer() -> Tokenizer:
    """Id b for byte b, then pad, bos and eos; bos in front of a prompt."""
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {}
    for byte in range(256):
        symbol = _symbol(byte)
        vocabulary[symbol] = byte
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = alphabet, decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<bos>", "<eos>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    return tokenizer


def _symbol(byte: int) -> str:
    """GPT-2's printable stand-in for a byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in plain else chr(256 + [b for b in range(256) if b not in plain].index(byte))


def policy(folder: Path, *, version: int = 0) -> CheckpointPolicy:
    """The checkpoint of a folder, loaded."""
    return load_checkpoint(folder, run_id="run", version=version, device="cpu")


@torch.inference_mode()
def logprobs_of(
    policy: CheckpointPolicy, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of tokens behind a prompt, by one plain forward pass without a cache."""
    logits = policy.model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0].float()
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)
    return logp.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
