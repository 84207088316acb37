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
import random  # noqa: F401  (os.fork's hook seeds it anew in each copy)
import re  # noqa: F401
import string  # noqa: F401
import sys
import traceback  # noqa: F401
import types
import typing  # noqa: F401


def _code(ended):
    """The exit code that the interpreter would give for a SystemExit."""
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    print(ended.code, file=sys.stderr)  # noqa: T201
    return 1


def _run(path, names):
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"python3: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
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


def _serve(folders):
    sys.path.insert(0, "/mnt")
    import tilt_zygote  # pyright: ignore[reportMissingImports]

    del sys.path[0], sys.modules["tilt_zygote"]
    sys.path_importer_cache.pop("/mnt", None)
    gc.collect()
    gc.freeze()
    arguments, environment = tilt_zygote.serve(folders)
    os.environ.clear()
    for item in environment:
        name, _, value = item.partition(b"=")
        os.environb[name] = value
    sys.argv[:] = [os.fsdecode(argument) for argument in arguments]
    sys.orig_argv[:] = ["python3", "-I", "-S", *sys.argv]


_serve(int(sys.argv[1]))
_script = os.path.join(os.getcwd(), sys.argv[0])
_main = sys.modules["__main__"] = types.ModuleType("__main__")
_main.__dict__.update(__builtins__=__builtins__, __file__=_script, __cached__=None, __annotations__={})
_end(_run(_script, _main.__dict__))
