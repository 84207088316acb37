"""A Python that has started already; each copy of it runs a script as `python3 -I -S script` would.

Guarantees: modules are as fresh as after a start; random numbers differ from copy to copy; nothing of another
copy is seen.
Does not: run module destructors at the end. Exit handlers run and streams are flushed, then it is gone."""

# ruff: noqa: BLE001

import atexit
import bisect  # noqa: F401  (these are loaded once, for every copy)
import collections  # noqa: F401
import contextlib  # noqa: F401
import copy  # noqa: F401
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import io  # noqa: F401
import itertools  # noqa: F401
import json  # noqa: F401
import linecache  # noqa: F401
import math  # noqa: F401
import operator  # noqa: F401
import os
import re  # noqa: F401
import string  # noqa: F401
import sys
import traceback  # noqa: F401
import types
import typing  # noqa: F401

_fork = os.fork
del os.fork  # so that random leaves no hook: `_seed` does its work by one call, and leaves it for later
import random  # noqa: E402

os.fork = _fork
_main = types.ModuleType("__main__")
_main.__dict__.update(__builtins__=__builtins__, __cached__=None, __annotations__={})


def _code(ended):
    """The exit code that the interpreter would give for a SystemExit."""
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    print(ended.code, file=sys.stderr)  # noqa: T201
    return 1


def _run(path, source, names):
    if isinstance(source, int):
        sys.stderr.write(f"python3: can't open file {path!r}: [Errno {source}] {os.strerror(source)}\n")
        return 2
    try:
        exec(compile(source, path, "exec", dont_inherit=True), names)
    except SystemExit as ended:
        return _code(ended)
    except BaseException as error:
        after = error.__traceback__ and error.__traceback__.tb_next  # without this file's own line
        sys.excepthook(type(error), error.with_traceback(after), after)
        return 1
    return 0


def _end(code):
    """What the interpreter does at its end, without taking everything apart."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except Exception:
            code = code or 120
    os._exit(code)


def _seed():
    super(random.Random, random._inst).seed()
    os.register_at_fork(after_in_child=random._inst.seed)


def _rehearse():
    """What a first use makes or changes is there before any copy: a copy that changes it pays for it."""
    for _ in range(20):
        _run("", b"", {})


def _serve(folders):
    """Returns in each copy: its script's path and bytes."""
    sys.path.insert(0, "/mnt")
    import tilt_zygote  # pyright: ignore[reportMissingImports]

    del sys.path[0], sys.modules["tilt_zygote"]
    sys.path_importer_cache.pop("/mnt", None)
    variables = os.environ._data  # pyright: ignore[reportAttributeAccessIssue]
    _rehearse()
    gc.collect()
    gc.freeze()
    arguments, environment, path, source = tilt_zygote.serve(folders)
    if tilt_zygote.NEW_SEEDS:
        _seed()
    variables.clear()
    variables.update(environment)
    sys.argv[:] = arguments
    sys.orig_argv[4:] = arguments[1:]
    sys.orig_argv[0], sys.orig_argv[3] = "python3", arguments[0]
    sys.modules["__main__"] = _main
    _main.__dict__["__file__"] = path
    return path, source


_end(_run(*_serve(int(sys.argv[1])), _main.__dict__))
