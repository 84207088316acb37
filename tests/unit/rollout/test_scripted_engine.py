"""What the scripted engine recites."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from services.rollout.engine import Answer, Ask, Finish
from services.rollout.noise import key_of
from services.rollout.scripted_engine import END, Script, ScriptedEngine, load, read_script
from tiltyard.store.policies import PolicyRow

ROW = PolicyRow(
    run_id="r", version=7, state="PUBLISHED", step=None, prefix="nowhere/", files={}, checkpoint=False
)


def recited(script: Script, prompt: str, seed: int = 0, **rules: object) -> Answer:
    ask = Ask(**{"prompt": prompt, "max_tokens": 100, "seed": key_of(seed), **rules})
    return asyncio.run(ScriptedEngine(script).generate(lambda: load(ROW), ask))


def test_the_share_of_right_answers_is_the_scripts() -> None:
    script = Script(share=0.3, answers={})
    texts = [recited(script, "sum it\nanswer: 42\n", seed).text for seed in range(2_000)]
    assert set(texts) == {"42", "not 42"}
    assert abs(texts.count("42") / 2_000 - 0.3) < 0.05


def test_the_seed_alone_decides() -> None:
    script = Script(answers={})
    first, again = ([recited(script, "answer: a", s).text for s in range(40)] for _ in range(2))
    assert first == again
    assert len(set(first)) == 2


def test_tokens_are_bytes_and_the_end() -> None:
    answer = recited(Script(share=1.0, answers={}), "answer: xy")
    assert answer.token_ids == (*b"xy", END)
    assert answer.logprobs == (-0.5,) * 3
    assert (answer.finish, answer.policy.version) == (Finish.STOP, 7)


def test_stop_strings_and_limits_hold() -> None:
    script = Script(share=1.0, answers={})
    assert recited(script, "answer: abc", stop=(b"b",)).text == "a"
    assert recited(script, "answer: abc", max_tokens=2).finish is Finish.LENGTH


def test_other_prompts_get_a_fixed_answer() -> None:
    assert recited(Script(answers={}), "hello").text == recited(Script(answers={}), "bye", 9).text != ""


def test_a_script_file_answers_whole_prompts(tmp_path: Path) -> None:
    path, prompt = tmp_path / "script.json", "def f():\n    # é\n"
    path.write_text(json.dumps({hashlib.sha256(prompt.encode()).hexdigest(): "    return 1\n"}))
    script = read_script(path, share=0.0)
    assert recited(script, prompt).text == "    return 1\n"
    assert recited(script, prompt + "answer: 1").text == "not 1"


def test_a_script_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('["x"]')
    with pytest.raises(ValueError, match="one JSON object"):
        read_script(path, share=0.0)
