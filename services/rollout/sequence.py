"""One completion while it grows.

Guarantees: it ends at the first stop string in its bytes, end token or limit, and its text is cut there.
Does not: sample; tokens come from outside."""

import time
from collections.abc import Callable

from services.rollout.engine import Answer, Ask, Choose, Finish, Policy, prompt_ids


class Sequence:
    """Tokens of one completion, and where they end."""

    __slots__ = (
        "_bytes",
        "_limit",
        "_text_end",
        "admitted",
        "ask",
        "asked",
        "cancelled",
        "choose",
        "finish",
        "logprobs",
        "policy",
        "prompt",
        "resolve",
        "tokens",
        "top",
    )

    policy: Policy
    prompt: tuple[int, ...]

    def __init__(self, ask: Ask, choose: Choose, resolve: Callable[[Answer | BaseException], None]) -> None:
        self.ask, self.choose, self.resolve = ask, choose, resolve
        self.asked = self.admitted = time.monotonic()
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top: list[dict[int, float]] = []
        self.finish: Finish | None = None
        self.cancelled = False
        self._bytes = bytearray()
        self._text_end: int | None = None

    def begin(self, policy: Policy) -> None:
        """Fix the policy and the prompt's tokens. Raises `Refused`."""
        self.prompt = prompt_ids(policy, self.ask.prompt)
        self.policy = policy
        self._limit = min(self.ask.max_tokens, policy.context - len(self.prompt))
        self.admitted = time.monotonic()

    @property
    def length(self) -> int:
        """Tokens of the prompt and of what was generated."""
        return len(self.prompt) + len(self.tokens)

    @property
    def longest(self) -> int:
        """What `length` may come to."""
        return len(self.prompt) + self._limit

    def accept(self, token: int, logprob: float) -> bool:
        """Append a token; True once the completion has ended."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        start = len(self._bytes)
        if token in self.policy.ends:
            self.finish, self._text_end = Finish.STOP, start
            return True
        self._bytes += self.policy.bytes_of(token)
        if self.ask.stop and self._stopped(start):
            return True
        if len(self.tokens) >= self._limit:
            self.finish = Finish.LENGTH
        return self.finish is not None

    def _stopped(self, start: int) -> bool:
        """Whether a stop string ends among the bytes from `start` on; the earliest one counts."""
        found = [
            at for stop in self.ask.stop if (at := self._bytes.find(stop, max(0, start - len(stop) + 1))) >= 0
        ]
        if found:
            self.finish, self._text_end = Finish.STOP, min(found)
        return bool(found)

    def answer(self) -> Answer:
        """The whole completion, once it has ended."""
        assert self.finish is not None, "a completion is answered when it has ended"
        return Answer(
            policy=self.policy,
            prompt_token_ids=self.prompt,
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            top=tuple(self.top),
            text=bytes(self._bytes[: self._text_end]).decode("utf-8", "replace"),
            finish=self.finish,
            waited=self.admitted - self.asked,
        )
