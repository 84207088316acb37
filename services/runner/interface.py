"""How a policy and its environment take turns, by kind of interface.

Guarantees: an interface says what the policy sees first, and after each turn either what it sees next or that
the episode has ended.
Does not: ask the policy, or keep the time (`episode`). A kind that needs a sandbox opens one in `opened`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from services.runner.policy import Context
from tiltyard.contracts.records import Turn
from tiltyard.contracts.task_spec import PublicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The policy has answered."""

    answer: str


class Interface(Protocol):
    """One episode's environment, from the policy's side."""

    async def first(self) -> Context:
        """What the first turn is conditioned on."""
        ...

    async def after(self, turn: Turn) -> Context | Ended:
        """What the next turn is conditioned on: earlier token ids as they were, and new ones behind them."""
        ...


class AnswerInterface:
    """One turn, whose text is the answer."""

    def __init__(self, spec: PublicSpec) -> None:
        self._spec = spec

    async def first(self) -> Context:
        return self._spec.instruction

    async def after(self, turn: Turn) -> Context | Ended:
        return Ended(answer=turn.text)


@asynccontextmanager
async def opened(spec: PublicSpec) -> AsyncIterator[Interface]:
    """The interface that a task asks for, with whatever it holds until the block ends."""
    yield AnswerInterface(spec)
