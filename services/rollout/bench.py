"""`python -m services.rollout.bench`: tokens per second, batched and one by one.

Guarantees: every figure comes from the same process and model in turn, so that their ratios mean something.
Does not: measure HTTP, or a policy that has learnt to end early."""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from services.rollout.checkpoint_policy import CheckpointPolicy, load_checkpoint
from services.rollout.engine import Ask
from services.rollout.noise import key_of
from services.rollout.scheduler import Scheduler
from services.rollout.transformers_engine import open_engine

PROMPT = "def f{}(x):\n    # twice the number, plus one, when it is odd\n    return"


@click.command()
@click.option(
    "--checkpoint", type=click.Path(exists=True, path_type=Path), help="Folder; else a fresh model."
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--groups", default=16, show_default=True, help="Distinct prompts.")
@click.option("--size", default=8, show_default=True, help="Samples of each prompt.")
@click.option("--tokens", default=48, show_default=True, help="Most tokens of a completion.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--threads", default=0, show_default=True, help="Torch threads; 0: by the size of the model.")
def main(
    checkpoint: Path | None, device: str, groups: int, size: int, tokens: int, rounds: int, threads: int
) -> None:
    """Print one JSON document of tokens per second (medians) and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        policy = load_checkpoint(checkpoint or fresh(Path(folder)), run_id="bench", version=0, device=device)
    engine = open_engine(max_batch=groups * size, threads=threads)
    ways: dict[str, Callable[[], int]] = {
        "one_by_one": lambda: asyncio.run(one_by_one(engine, policy, groups, tokens)),
        "batched": lambda: asyncio.run(batched(engine, policy, groups, size, tokens)),
        "transformers_generate": lambda: peer(policy, groups, size, tokens),
    }
    rates = measured(ways, rounds)
    engine.close()
    ratios = {
        "batched_to_one_by_one": rates["batched"] / rates["one_by_one"],
        "batched_to_transformers_generate": rates["batched"] / rates["transformers_generate"],
    }
    document = {"tokens_per_s": rates, "ratios": ratios}
    click.echo(json.dumps(document, indent=2, default=str))


def measured(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Median tokens per second of each way, the ways taken in turn after one round for warmth."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            made = way()
            if turn:
                rates[name].append(made / (time.perf_counter() - began))
    return {name: round(median(values), 1) for name, values in rates.items()}


def _ask(group: int, member: int, tokens: int) -> Ask:
    return Ask(prompt=PROMPT.format(group), max_tokens=tokens, seed=key_of(group, member))


async def one_by_one(engine: Scheduler, policy: CheckpointPolicy, groups: int, tokens: int) -> int:
    """Tokens of a few requests that wait for each other."""
    answers = [await engine.generate(lambda: policy, _ask(g, 0, tokens)) for g in range(min(groups, 4))]
    return sum(len(answer.token_ids) for answer in answers)


async def batched(engine: Scheduler, policy: CheckpointPolicy, groups: int, size: int, tokens: int) -> int:
    """Tokens of all requests at once."""
    asks = [_ask(group, member, tokens) for group in range(groups) for member in range(size)]
    answers = await asyncio.gather(*(engine.generate(lambda: policy, ask) for ask in asks))
    return sum(len(answer.token_ids) for answer in answers)


def peer(policy: CheckpointPolicy, groups: int, size: int, tokens: int) -> int:
    """Tokens of the same requests by transformers' own `generate`, as one batch with left padding."""
    prompts = [policy.encode(PROMPT.format(group)) for group in range(groups) for _ in range(size)]
    longest, end = max(map(len, prompts)), min(policy.ends, default=0)
    ids = torch.tensor([[end] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    model: Any = policy.model
    made = model.generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        do_sample=True,
        top_k=0,
        max_new_tokens=tokens,
        pad_token_id=end,
    )[:, longest:]
    ended = (made == end).cumsum(1)
    return int((ended - (made == end).long() == 0).sum())


def fresh(folder: Path) -> Path:
    """A byte-level Llama of 0.9 M parameters with random weights."""
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=257,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=256,
            pad_token_id=256,
        )
    ).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


if __name__ == "__main__":
    main()
