"""Runs test functions against a solution in another sandbox; sent in behind `values.py` and `files.py`.

Usage: python3 -I -S harness.py FOLDER SOCKET, where SOCKET is the descriptor on which the solution's driver
answers. Standard input holds the list of ids (`module.function`). Writes one line to standard output, both in
the form of `values.py`: {"tests": {id: None or why it failed}, "broken": None or why the tests could not run,
"touched": how often the tests saw what the solution does, "waited": seconds spent waiting for it}.

Guarantees: the policy's code never runs in this process; what comes over the socket becomes exact built-in
values, or an exception of a short list, and nothing else.
Does not: let a test change an argument in place: the solution gets copies."""

# ruff: noqa: F821 - dump, load and what files.py has stand in what is sent in front of this file
# pyright: reportUndefinedVariable=false

import builtins
import os
import sys
import time

LONGEST_REPLY = 8_000_000
"""Bytes of one answer of the solution."""
DETAIL = 2_000
"""Characters kept of each failure."""
SHOWN = 200
"""Characters kept of the solution's last answer, for people who read the failure."""
RAISED = (
    *("ArithmeticError", "AssertionError", "AttributeError", "EOFError", "FloatingPointError"),
    *("ImportError", "IndexError", "KeyError", "LookupError", "MemoryError", "NameError"),
    *("NotImplementedError", "OSError", "OverflowError", "RecursionError", "RuntimeError", "TypeError"),
    *("UnicodeError", "ValueError", "ZeroDivisionError"),
)
"""Exceptions that a test may expect. Not StopIteration: it would end a test's own loop early, and pass."""


class SolutionError(Exception):
    """The solution answered nothing that a test could use: it ended, or raised something of its own."""


class Wire:
    """The socket to the solution's driver."""

    def __init__(self, fileno):
        self.socket = os.fdopen(fileno, "r+b", buffering=0)
        self.touched = 0
        self.waited = 0.0
        self.rest = b""
        self.lost = None
        self.last = ""

    def ask(self, *request):
        if self.lost is None:
            try:
                self.send(dump(list(request)).encode() + b"\n")
                begun = time.monotonic()
                try:
                    return self.reply()
                finally:
                    self.waited += time.monotonic() - begun
            except (OSError, ValueError) as error:
                self.lost = str(error) or type(error).__name__
        raise SolutionError(f"the solution gave no answer: {self.lost}")

    def send(self, data):
        while data:
            data = data[self.socket.write(data) :]

    def reply(self):
        parts, size = [self.rest], len(self.rest)
        while b"\n" not in parts[-1]:
            part = self.socket.read(65_536)
            if not part:
                raise ValueError("its process ended")
            parts.append(part)
            size += len(part)
            if size > LONGEST_REPLY:
                raise ValueError(f"an answer of more than {LONGEST_REPLY} bytes")
        line, _, self.rest = b"".join(parts).partition(b"\n")
        self.last = line[:SHOWN].decode("ascii", "replace")
        return opened(load(line))


def opened(reply):
    """The value in a reply; raises what the solution raised."""
    if type(reply) is not list or not reply or type(reply[0]) is not str:
        raise ValueError("an answer that is none")
    if reply[0] == "error" and len(reply) == 3 and all(type(part) is str for part in reply):
        kind = getattr(builtins, reply[1]) if reply[1] in RAISED else SolutionError
        raise Raised(kind(reply[2]))
    return reply


class Raised(Exception):
    """Carries what the solution raised past the wire's own errors."""

    def __init__(self, error):
        self.error = error


class Solution(type(sys)):
    """The module `solution` as tests see it: every public name is a function, or a constant."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        wire = self.__dict__["_wire"]

        def call(*args, **kwargs):
            wire.touched += 1
            return ask(wire, "call", name, list(args), kwargs)

        call.__name__ = call.__qualname__ = name
        try:
            value = ask(wire, "get", name)
        except Exception:  # noqa: BLE001 - a missing name is the solution's failure; tests meet it when they call
            return call
        if value is CALLABLE:
            value = call
        else:
            wire.touched += 1
        setattr(self, name, value)
        return value


CALLABLE = object()


def ask(wire, *request):
    try:
        reply = wire.ask(*request)
    except Raised as raised:
        raise raised.error from None
    if reply[0] == "callable" and len(reply) == 1:
        return CALLABLE
    if reply[0] == "ok" and len(reply) == 2:
        return reply[1]
    raise SolutionError("the solution's process answered nonsense")


def run(ids, folder, wire):
    """Every id's failure, or None for those that passed."""
    verdicts, modules = {}, {}
    for test in ids:
        name, _, function = test.rpartition(".")
        if name not in modules:
            modules[name] = imported(name, f"{folder}/{name}.py")
        verdicts[test] = outcome_of(getattr(modules[name], function, None), wire)
    return {"tests": verdicts, "broken": None}


def imported(name, path):
    """A test module; one of a package, or that an earlier one has imported, as Python imports it."""
    if "." in name or name in sys.modules or not os.path.exists(path):
        return __import__(name, fromlist=["_"])
    return load_module(name, path)


def outcome_of(function, wire):
    if not callable(function):
        return "the test modules define no such function"
    wire.last = "none"
    try:
        function()
    except BaseException:  # noqa: BLE001 - whatever a test raises fails it
        return f"{explained()}the solution's last answer: {wire.last}"
    return None


def explained():
    """The end of the current exception's traceback."""
    import traceback

    return traceback.format_exc(limit=-6)[-DETAIL:]


def main():
    folder, fileno = sys.argv[1:]
    sys.dont_write_bytecode = True  # nobody imports these files again
    ids = load(read_all(0))
    report = os.dup(1)
    os.dup2(2, 1)
    sys.path.insert(0, folder)
    solution = Solution("solution")
    solution.__dict__["_wire"] = wire = Wire(int(fileno))
    sys.modules["solution"] = solution
    try:
        result = run(ids, folder, wire)
    except BaseException:  # noqa: BLE001 - tests that cannot be imported are a verdict on the tests
        result = {"tests": {}, "broken": explained()}
    write_all(report, dump({**result, "touched": wire.touched, "waited": wire.waited}).encode())
    sys.stderr.flush()
    os._exit(0)


main()
