"""Policies are Hugging Face folders: what is saved loads, and says the same."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.trainer.policy import BOS, BYTES, EOS, Policy, byte_tokenizer, fresh, load
from tests.unit.trainer.conftest import TINY

TOKENIZER = byte_tokenizer(64)


def test_a_saved_policy_loads_with_the_auto_classes_and_says_the_same(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)

    ids = torch.tensor([policy.tokenizer("def f(a): add 1\n").input_ids])
    torch.testing.assert_close(model(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    assert tokenizer("def f(a): add 1\n").input_ids == ids[0].tolist()


def test_equal_weights_are_saved_as_equal_bytes(policy: Policy, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    policy.save(tmp_path / "a")
    load(tmp_path / "a", "cpu").save(tmp_path / "b")

    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


def test_no_file_of_a_policy_is_a_pickle(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)

    names = {file.name for file in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    for file in tmp_path.glob("*.json"):
        json.loads(file.read_text())
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors"}


@given(st.text(max_size=50))
@settings(deadline=None)
def test_a_byte_is_a_token_and_every_text_comes_back(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False).input_ids

    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_a_prompt_begins_with_bos_and_a_completion_ends_with_eos(policy: Policy) -> None:
    prompt, completion = policy.encode("add 1\n", "return a+1")

    assert prompt == (BOS, *b"add 1\n")
    assert completion == (*b"return a+1", EOS)


def test_text_that_looks_like_a_special_token_in_a_completion_never_ends_it(policy: Policy) -> None:
    _, completion = policy.encode("", "a")

    assert completion.count(EOS) == 1
    assert max(completion[:-1]) < BYTES


@pytest.mark.parametrize("seed", [0, 7])
def test_a_fresh_policy_is_a_function_of_its_seed(seed: int) -> None:
    one, two, other = (fresh(TINY, seed=s, device="cpu").model.state_dict() for s in (seed, seed, seed + 1))

    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
