"""The port between the API and whatever generates tokens.

Guarantees: an answer names the one policy that made all its tokens, and holds exactly the sampled token ids,
the ending one included, with as many log-probabilities.
Does not: know HTTP, runs or rows."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Finish(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """A stop string, or the policy's own end token."""
    LENGTH = "length"
    """`max_tokens`, or the end of the policy's context."""


class Refused(Exception):
    """This request cannot be answered as it is."""


class PromptTooLong(Refused):
    """No token fits behind the prompt."""


class InvalidPrompt(Refused):
    """The prompt is empty, or holds token ids that the policy does not have."""


class Overloaded(Exception):
    """More waits already than the engine takes on."""


class EngineFailed(Exception):
    """Generation broke down; the log has the reason."""


class EngineClosed(Exception):
    """The engine is shutting down."""


class Policy(Protocol):
    """A policy version that can generate."""

    @property
    def run_id(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def context(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a completion."""
        ...

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of a text; with `special`, behind the begin token that the tokenizer adds to prompts."""
        ...

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for; empty for a special one."""
        ...

    def has(self, token: int) -> bool:
        """Whether the policy has this token id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One completion to generate."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    """0: the likeliest token, always."""
    top_p: float = 1.0
    stop: tuple[bytes, ...] = ()
    seed: int = 0
    """64 bits that alone decide, with the policy and the prompt, which tokens are drawn."""
    top_logprobs: int = 0
    """How many of the likeliest tokens to tell at each place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion."""

    policy: Policy
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Under the distribution that was sampled from; for temperature 0, the policy's own at temperature 1."""
    top: tuple[dict[int, float], ...]
    """The likeliest tokens at each place; empty unless asked for."""
    text: str
    """Without the stop string or end token, and what follows it."""
    finish: Finish
    waited: float = 0.0
    """Seconds before generation began."""


Choose = Callable[[], Policy]
"""The policy to generate with, asked for when generation begins, from any thread."""


class Engine(Protocol):
    """Something that generates."""

    async def generate(self, choose: Choose, ask: Ask) -> Answer:
        """One completion. Raises `Refused`, `Overloaded`, `EngineFailed`, or what `choose` raises;
        cancelling stops the work."""
        ...

    def close(self) -> None:
        """Fail what is unfinished with `EngineClosed`; idempotent."""
        ...


class Meter(Protocol):
    """Whoever counts what the engine does, from any thread."""

    def admitted(self, waited: float) -> None:
        """A sequence began after so many seconds."""
        ...

    def stepped(self, rows: int) -> None:
        """One forward pass over so many sequences."""
        ...


def prompt_ids(policy: Policy, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    """The prompt as token ids that the policy can continue; raises `Refused`."""
    ids = policy.encode(prompt) if isinstance(prompt, str) else prompt
    if not ids:
        raise InvalidPrompt("the prompt holds no token; give at least one")
    if len(ids) >= policy.context:
        raise PromptTooLong(
            f"the prompt is {len(ids)} tokens long and the policy's context holds {policy.context};"
            " shorten the prompt"
        )
    if isinstance(prompt, tuple):
        wrong = next((i for i in ids if not policy.has(i)), None)
        if wrong is not None:
            raise InvalidPrompt(f"the policy has no token with id {wrong}")
    return ids
