"""Answers without a model, for benches and for tests of everything around generation.

Guarantees: the answer depends on the prompt and the seed alone; no weights are read, so a published row is
enough.
Does not: learn, or look at the policy version beyond naming it."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.rollout.engine import Answer, Ask, Choose, Meter
from services.rollout.sequence import Sequence
from tiltyard.store.policies import PolicyRow

BEGIN, END, SIZE = 257, 258, 259
"""Token ids beside the 256 bytes: 256 pads."""
CONTEXT = 1 << 20
LOGPROB = -0.5
QUESTION = "answer: "
FIXED = "I have no script for this prompt.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedPolicy:
    """A policy version in name."""

    run_id: str
    version: int
    context: int = CONTEXT
    ends: frozenset[int] = frozenset({END})

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        return (*([BEGIN] if special else []), *text.encode())

    def bytes_of(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def has(self, token: int) -> bool:
        return 0 <= token < SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is answered."""

    share: float = 0.5
    """Of the prompts with a line `answer: X`, how many are answered with X; the others with `not X`."""
    answers: Mapping[str, str]
    """Answers by the hex SHA-256 of the whole prompt's text; they come first."""

    def answer(self, prompt: str, seed: int) -> str:
        """The answer to a prompt."""
        if self.answers:
            known = self.answers.get(hashlib.sha256(prompt.encode()).hexdigest())
            if known is not None:
                return known
        for line in prompt.splitlines():
            if line.startswith(QUESTION):
                right = line.removeprefix(QUESTION)
                return right if _fraction(seed) < self.share else f"not {right}"
        return FIXED


class ScriptedEngine:
    """An engine that recites."""

    def __init__(self, script: Script, *, latency: float = 0.0, meter: Meter | None = None) -> None:
        self._script, self._latency, self._meter = script, latency, meter

    async def generate(self, choose: Choose, ask: Ask) -> Answer:
        sequence = Sequence(ask, choose, lambda _: None)
        sequence.begin(choose())
        if self._meter:
            self._meter.admitted(0.0)
        if self._latency:
            await asyncio.sleep(self._latency)
        prompt = b"".join(map(sequence.policy.bytes_of, sequence.prompt)).decode("utf-8", "replace")
        for token in (*self._script.answer(prompt, ask.seed).encode(), END):
            if sequence.accept(token, LOGPROB):
                break
        return sequence.answer()

    def close(self) -> None:
        """Nothing: no work outlives its request."""


def load(row: PolicyRow) -> ScriptedPolicy:
    """The policy version of a row, whose objects are not read."""
    return ScriptedPolicy(run_id=row.run_id, version=row.version)


def read_script(path: Path | None, *, share: float) -> Script:
    """A script with the answers of a JSON file, if there is one. Raises ValueError for another content."""
    if path is None:
        return Script(share=share, answers={})
    try:
        answers = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"TILTYARD_SCRIPT_FILE {path} cannot be read: {error}") from error
    if not isinstance(answers, dict) or not all(isinstance(value, str) for value in answers.values()):
        raise ValueError(f"{path} must hold one JSON object: SHA-256 of a prompt → its answer")
    return Script(share=share, answers=answers)


def _fraction(seed: int) -> float:
    """A number in [0, 1) that the seed decides."""
    digest = hashlib.blake2b(seed.to_bytes(16, "big", signed=True), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
