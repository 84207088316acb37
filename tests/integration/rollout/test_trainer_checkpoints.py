"""What the trainer saves is what the rollout service generates with."""

import asyncio
from pathlib import Path

import pytest
import torch

from services.rollout.transformers_engine import Checkpoints, open_engine
from services.trainer.policy import EOS, fresh
from tests.integration.rollout.conftest import InProcess, Shelf
from tiltyard.contracts.run_config import FreshPolicy


def test_a_fresh_policy_of_the_trainer_generates_with_the_same_tokens_and_probabilities(
    shelf: Shelf, tmp_path: Path
) -> None:
    trained = fresh(FreshPolicy(hidden_size=32, layers=2, max_positions=64), seed=1, device="cpu")
    trained.save(tmp_path / "policy")
    shelf.publish(shelf.run("r"), 0, tmp_path / "policy")

    async def go() -> dict:
        engine = open_engine(max_batch=4, threads=1)
        async with InProcess(shelf.database_url, engine, Checkpoints(shelf.objects).load) as service:
            answer = await service.complete(
                model="r@latest", prompt="def é", seed=4, max_tokens=20, logprobs=0, return_token_ids=True
            )
            return answer.json()["choices"][0]

    choice = asyncio.run(go())
    prompt, _ = trained.encode("def é", "")
    assert choice["prompt_token_ids"] == list(prompt)
    assert plain(trained.model, prompt, choice["token_ids"]) == pytest.approx(
        choice["logprobs"]["token_logprobs"], abs=2e-4
    )
    assert (choice["finish_reason"] == "stop") == (choice["token_ids"][-1] == EOS)


@torch.inference_mode()
def plain(model: torch.nn.Module, prompt: tuple[int, ...], tokens: list[int]) -> list[float]:
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
