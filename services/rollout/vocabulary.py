"""What a checkpoint's tokens stand for, in bytes.

Guarantees: joining the bytes of the tokens gives the text that the tokenizer's own decoder gives, so stop
strings are found even where a character spans tokens.
Does not: read `tokenizer.model` or other formats; a checkpoint brings `tokenizer.json`."""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnknownTokenizer(ValueError):
    """The tokenizer is missing, or of a kind whose tokens have no bytes of their own."""


class Vocabulary:
    """A tokenizer with the bytes of each of its tokens."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UnknownTokenizer("the checkpoint has no tokenizer.json; save it with a fast tokenizer")
        text = path.read_text()
        self._tokenizer = Tokenizer.from_str(text)
        self._bytes = _bytes_by_id(self._tokenizer, json.loads(text))

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids; with `special`, those that the tokenizer puts around a text are included."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def bytes_of(self, token: int) -> bytes:
        """Bytes of a token; none for a special token, or for an id that only the embedding has."""
        return self._bytes[token] if token < len(self._bytes) else b""


def _bytes_by_id(tokenizer: Tokenizer, document: dict[str, Any]) -> list[bytes]:
    special = {t["id"] for t in document.get("added_tokens", ()) if t["special"]}
    added = {t["id"] for t in document.get("added_tokens", ())}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    translate = _translation(document)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token in vocabulary.items():
        if token not in special:
            table[token] = piece.encode() if token in added else translate(piece)
    return table


def _translation(document: dict[str, Any]) -> Any:
    """How a piece of the vocabulary becomes bytes, by the tokenizer's decoder."""
    kinds = _decoders(document.get("decoder"))
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()
        return lambda piece: bytes(alphabet[c] for c in piece)
    if {"ByteFallback", "Metaspace", "Fuse"} & kinds:
        return _sentencepiece
    raise UnknownTokenizer(
        f"the tokenizer decodes by {sorted(kinds) or 'nothing'}; known are ByteLevel and ByteFallback"
    )


def _decoders(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_decoders(d) for d in decoder.get("decoders", ())))


def _sentencepiece(piece: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins for bytes of byte-level BPE: github.com/openai/gpt-2, src/encoder.py."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(b): b for b in plain}
    for offset, byte in enumerate(b for b in range(256) if b not in plain):
        alphabet[chr(256 + offset)] = byte
    return alphabet
