"""Two laws of `conformance` that take more than one command: a paused box stands still, and goes on."""

import asyncio

from .backend import Box
from .errors import SandboxPaused

_COUNT = "import time\nfor n in range(10**9):\n  print(n, flush=True)\n  time.sleep(0.01)"
_LOOK_SECONDS = 0.3


async def stands_still(box: Box) -> str:
    """What is wrong; empty when nothing is. Raises SandboxError."""
    counting = await box.start(["python3", "-I", "-S", "-c", _COUNT], wall_seconds=600)
    await counting.more()
    await box.pause()
    await asyncio.sleep(_LOOK_SECONDS)  # what it wrote before may still be on its way
    seen = counting.output().end
    await asyncio.sleep(_LOOK_SECONDS)
    if counting.output().end != seen:
        return "it wrote on while it was paused"
    await box.resume()
    await counting.more(offset=seen)
    return "" if counting.poll() is None else f"it ended: {counting.poll()}"


async def refuses(box: Box) -> str:
    """As `stands_still`."""
    await box.write("kept", b"1")
    await box.pause()
    await box.pause()
    try:
        await box.exec(["true"])
        return "a command ran while it was paused"
    except SandboxPaused:
        pass
    await box.resume()
    await box.resume()
    result = await box.exec(["cat", "kept"])
    return "" if result.stdout == b"1" else f"its file was lost: {result}"
