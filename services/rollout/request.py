"""What a client may ask for, in OpenAI's and vLLM's words.

Guarantees: a key that would have no effect is an error that names the nearest one that has.
Does not: stream, echo or rank; those keys are known only to be refused when they are switched on.

Sources: https://platform.openai.com/docs/api-reference/completions,
https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html."""

import secrets
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from services.rollout.engine import Ask
from services.rollout.noise import key_of
from tiltyard.contracts.document import Document

MOST_CHOICES = 128
TokenId = Annotated[int, Field(strict=True, ge=0)]


def _one_prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        value.encode()  # a lone surrogate is no text: UnicodeEncodeError is a ValueError
        return value
    if isinstance(value, list) and all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    raise ValueError("give one prompt a request: a string, or a list of token ids")


Prompt = Annotated[str | tuple[int, ...], PlainValidator(_one_prompt)]
StopString = Annotated[str, Field(min_length=1, max_length=1_000)]


class CompletionRequest(Document):
    """Body of POST /v1/completions."""

    model: str
    """`run@version` or `run@latest`."""
    prompt: Prompt
    max_tokens: int | None = Field(default=16, ge=1)
    temperature: float | None = Field(default=1.0, ge=0, le=10)
    """0: the likeliest token, always."""
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    n: int | None = Field(default=1, ge=1, le=MOST_CHOICES)
    stop: StopString | Annotated[tuple[StopString, ...], Field(max_length=16)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    logprobs: int | None = Field(default=None, ge=0, le=20)
    """How many of the likeliest tokens to tell at each place, beside the drawn one."""
    return_token_ids: bool = False
    """Whether choices carry `token_ids` and `prompt_token_ids`."""
    stream: Literal[False] | None = False
    echo: Literal[False] | None = False
    user: str | None = None
    """Taken and not used, as OpenAI's clients may send it."""

    def asks(self) -> list[Ask]:
        """One for each choice; choice i of a seeded request draws the same whatever `n` is."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        stop_bytes = tuple(s.encode("utf-8", "replace") for s in stop)
        seed = secrets.randbits(64) if self.seed is None else self.seed
        return [
            Ask(
                prompt=self.prompt,
                max_tokens=16 if self.max_tokens is None else self.max_tokens,
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                stop=stop_bytes,
                seed=key_of(seed, choice),
                top_logprobs=self.logprobs or 0,
            )
            for choice in range(self.n or 1)
        ]


class TokenizeRequest(Document):
    """Body of POST /tokenize."""

    model: str
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Document):
    """Body of POST /detokenize."""

    model: str
    tokens: tuple[TokenId, ...]
