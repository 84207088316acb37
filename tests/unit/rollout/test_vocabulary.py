"""Bytes of tokens agree with the tokenizer's own decoder."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.rollout.vocabulary import UnknownTokenizer, Vocabulary
from tests.unit.rollout.checkpoints import BOS, EOS, byte_tokenizer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return Vocabulary(folder)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_survives_the_way_through_tokens(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text)
    assert ids == (BOS, *text.encode())
    assert b"".join(map(vocabulary.bytes_of, ids)).decode() == text


def test_special_tokens_and_ids_beyond_the_vocabulary_have_no_bytes(vocabulary: Vocabulary) -> None:
    assert vocabulary.bytes_of(EOS) == b""
    assert vocabulary.bytes_of(99_999) == b""


def test_sentencepiece_pieces_become_bytes(tmp_path: Path) -> None:
    pieces = {"<unk>": 0, "\u2581Hello": 1, "\u2581world": 2, "<0xC3>": 3, "<0xA9>": 4}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    joined = b"".join(map(Vocabulary(tmp_path).bytes_of, (1, 2, 3, 4))).decode()
    assert joined == tokenizer.decode([1, 2, 3, 4]) == " Hello world\u00e9"


def test_a_tokenizer_whose_tokens_have_no_bytes_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnknownTokenizer, match="ByteLevel"):
        Vocabulary(tmp_path)


def test_a_checkpoint_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownTokenizer, match="no tokenizer"):
        Vocabulary(tmp_path)


def test_added_tokens_that_are_not_special_have_their_text(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<tool>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"][-1]
    assert Vocabulary(tmp_path).bytes_of(added["id"]) == b"<tool>"
