"""What a process looks for seldom it still finds."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from tiltyard.telemetry.garbage import THRESHOLDS, look_seldom

class Node:
    pass

look_seldom()
assert gc.get_threshold() == THRESHOLDS and gc.get_freeze_count() > 0 and gc.isenabled()
node = Node()
node.itself, gone = node, weakref.ref(node)
del node
made = [[] for _ in range(2 * THRESHOLDS[0])]
assert gone() is None, "a cycle is never found"
"""


def test_cycles_are_found_after_the_start_is_put_aside() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
