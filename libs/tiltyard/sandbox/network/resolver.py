"""Names to addresses, on this side of the box.

Does not: judge the addresses. `dial` does, on each."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

_THREADS = 4


class Resolver(Protocol):
    """Finds the addresses of a name."""

    async def resolve(self, host: str) -> Sequence[str]:
        """IP addresses in the order to try. Raises OSError when there is none."""
        ...

    def close(self) -> None:
        """Lets go of what it holds; never waits."""
        ...


class SystemResolver:
    """This machine's resolver, in threads of its own: names that do not answer hold up one box alone."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")

    async def resolve(self, host: str) -> Sequence[str]:
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
