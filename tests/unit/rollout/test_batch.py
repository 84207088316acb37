"""Many sequences in one batch give what each gives alone, on a real model."""

from pathlib import Path

import pytest
import torch

from services.rollout.batch import TorchBatch
from services.rollout.checkpoint_policy import CheckpointPolicy
from services.rollout.engine import Ask
from services.rollout.noise import key_of
from services.rollout.sequence import Sequence
from tests.unit.rollout.checkpoints import EOS, logprobs_of, policy, save_llama, save_sliding

PROMPTS = ("a", "def f(x):\n    return", "# twice the number\n", "a", "zz" * 20)


@pytest.fixture(scope="module", params=[save_llama, save_sliding], ids=["llama", "sliding"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheckpointPolicy:
    return policy(request.param(tmp_path_factory.mktemp("checkpoint")))


def sequence(
    tiny: CheckpointPolicy, index: int, *, temperature: float = 1.0, most: int | None = None
) -> Sequence:
    ask = Ask(
        prompt=PROMPTS[index % len(PROMPTS)],
        max_tokens=most or 3 + 7 * index % 30,
        temperature=temperature,
        stop=(b"\n",) if index % 3 else (),
        seed=key_of(index),
    )
    made = Sequence(ask, lambda: tiny, lambda _: None)
    made.begin(tiny)
    return made


def finish(batch: TorchBatch) -> None:
    while batch.rows:
        batch.step()


def alone(tiny: CheckpointPolicy, index: int) -> Sequence:
    batch, only = TorchBatch(tiny), sequence(tiny, index)
    batch.admit([only])
    finish(batch)
    return only


def test_log_probabilities_are_those_of_a_plain_forward_pass(tiny: CheckpointPolicy) -> None:
    batch = TorchBatch(tiny)
    sequences = [sequence(tiny, i, temperature=(1.0, 0.6, 1.7)[i % 3]) for i in range(12)]
    batch.admit(sequences)
    finish(batch)
    for each in sequences:
        plain = logprobs_of(tiny, each.prompt, tuple(each.tokens), each.ask.temperature)
        assert each.logprobs == pytest.approx(plain, abs=2e-4)


def test_company_changes_nothing_whoever_leaves_first(tiny: CheckpointPolicy) -> None:
    batch, together = TorchBatch(tiny), [sequence(tiny, i) for i in range(20)]
    batch.admit(together)
    finish(batch)
    assert len({len(each.tokens) for each in together}) > 5, "they leave at different times"
    for i, each in enumerate(together):
        assert each.tokens == alone(tiny, i).tokens


def test_joining_later_changes_nothing(tiny: CheckpointPolicy) -> None:
    batch, together = TorchBatch(tiny), [sequence(tiny, i) for i in range(20)]
    waiting = list(together)
    while waiting or batch.rows:
        if waiting:
            batch.admit([waiting.pop() for _ in range(min(3, len(waiting)))])
        batch.step()
    for i, each in enumerate(together):
        assert each.tokens == alone(tiny, i).tokens


def test_equal_prompts_are_computed_once(tiny: CheckpointPolicy) -> None:
    widths: list[tuple[int, ...]] = []
    embedding = tiny.model.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda _, args, __: widths.append(tuple(args[0].shape)))
    try:
        group = [sequence(tiny, 5 * i, most=4) for i in range(8)]
        TorchBatch(tiny).admit(group)
    finally:
        hook.remove()
    assert widths == [(1, len(group[0].prompt))]
    assert len({tuple(each.tokens) for each in group}) > 1, "each draws for itself"


def test_the_work_shrinks_with_the_rows_that_ended(tiny: CheckpointPolicy) -> None:
    batch, rows = TorchBatch(tiny), list[int]()
    batch.admit([sequence(tiny, 0, most=2 + i) for i in range(8)])
    hook = tiny.model.get_input_embeddings().register_forward_hook(
        lambda _, args, __: rows.append(len(args[0]))
    )
    try:
        finish(batch)
    finally:
        hook.remove()
    assert rows == list(range(8, 0, -1))


def test_a_cancelled_row_leaves_and_the_others_go_on(tiny: CheckpointPolicy) -> None:
    batch, together = TorchBatch(tiny), [sequence(tiny, i) for i in (0, 1, 2)]
    batch.admit(together)
    together[0].cancelled = True
    gone = batch.step()
    assert together[0] in gone
    finish(batch)
    assert together[1].tokens == alone(tiny, 1).tokens
    assert together[2].tokens == alone(tiny, 2).tokens


@torch.inference_mode()
def test_greedy_rows_follow_the_likeliest_tokens(tiny: CheckpointPolicy) -> None:
    batch, each = TorchBatch(tiny), sequence(tiny, 1, temperature=0.0, most=30)
    batch.admit([each, sequence(tiny, 2)])
    finish(batch)
    ids = torch.tensor([[*each.prompt, *each.tokens]])
    logits = tiny.model(input_ids=ids, use_cache=False).logits[0, len(each.prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == each.tokens


def test_the_end_token_of_the_checkpoint_ends_a_completion(tmp_path: Path) -> None:
    tiny = policy(save_llama(tmp_path, eos_token_id=[EOS, 10]))
    assert tiny.ends == {EOS, 10}


def test_suppressed_tokens_are_never_drawn(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    text = (folder / "generation_config.json").read_text()
    keep = set(range(65, 70))
    banned = str([i for i in range(259) if i not in keep])
    (folder / "generation_config.json").write_text(
        text.rstrip().removesuffix("}").rstrip() + f', "suppress_tokens": {banned}}}'
    )
    tiny = policy(folder)
    batch, each = TorchBatch(tiny), sequence(tiny, 0, most=40)
    batch.admit([each])
    finish(batch)
    assert set(each.tokens) <= keep
    assert len(set(each.tokens)) > 1
