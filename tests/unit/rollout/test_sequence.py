"""Where a completion ends."""

import pytest

from services.rollout.engine import Ask, Finish, InvalidPrompt, PromptTooLong
from services.rollout.scripted_engine import BEGIN, END, ScriptedPolicy
from services.rollout.sequence import Sequence


def grown(
    tokens: bytes | list[int], *, stop: tuple[bytes, ...] = (), most: int = 100, context: int = 1000
) -> Sequence:
    policy = ScriptedPolicy(run_id="r", version=1, context=context)
    sequence = Sequence(Ask(prompt="ab", max_tokens=most, stop=stop), lambda: policy, lambda _: None)
    sequence.begin(policy)
    for token in tokens:
        if sequence.accept(token, -1.0):
            break
    return sequence


def test_a_stop_string_across_tokens_is_cut_off_the_text_but_not_off_the_tokens() -> None:
    answer = grown(b"x = 1\ndef g", stop=(b"\nclass", b"\ndef")).answer()
    assert answer.text == "x = 1"
    assert bytes(answer.token_ids) == b"x = 1\ndef"
    assert answer.finish is Finish.STOP
    assert len(answer.logprobs) == len(answer.token_ids)


def test_the_earliest_of_two_stop_strings_that_end_together_counts() -> None:
    assert grown(b"abcd", stop=(b"cd", b"bcd")).answer().text == "a"


def test_a_stop_string_inside_a_multibyte_character_does_not_match() -> None:
    answer = grown("né\n".encode(), stop=("é".encode(),)).answer()
    assert answer.text == "n"
    assert grown(b"ne\n", stop=("é".encode(),), most=3).answer().text == "ne\n"


def test_the_end_token_counts_as_a_token_and_not_as_text() -> None:
    answer = grown([*b"hi", END, *b"more"]).answer()
    assert answer.token_ids == (*b"hi", END)
    assert (answer.text, answer.finish) == ("hi", Finish.STOP)


def test_the_limit_is_the_lesser_of_what_was_asked_and_what_the_context_holds() -> None:
    assert grown(b"abcdef", most=4).answer().finish is Finish.LENGTH
    assert len(grown(b"abcdef", most=4).tokens) == 4
    assert len(grown(b"abcdef", context=5).tokens) == 2


def test_a_stop_at_the_limit_is_a_stop() -> None:
    assert grown(b"ab\n", stop=(b"\n",), most=3).answer().finish is Finish.STOP


def test_invalid_bytes_are_shown_as_replacements() -> None:
    assert grown(b"a\xff", most=2).answer().text == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("x" * 20, PromptTooLong, "21 tokens long and the policy's context holds 10"),
        ((), InvalidPrompt, "no token"),
        ((BEGIN, 900), InvalidPrompt, "no token with id 900"),
    ],
)
def test_a_prompt_that_cannot_be_continued_is_refused(
    prompt: str | tuple[int, ...], error: type[Exception], words: str
) -> None:
    policy = ScriptedPolicy(run_id="r", version=1, context=10)
    sequence = Sequence(Ask(prompt=prompt, max_tokens=1), lambda: policy, lambda _: None)
    with pytest.raises(error, match=words):
        sequence.begin(policy)
