"""Runs the policy's file and answers calls of its functions; sent in behind `values.py` and `files.py`.

Usage: python3 -I -S driver.py FOLDER FILE IN OUT, where IN and OUT are file descriptors. Requests are lines
["get", name] or ["call", name, args, kwargs]; each is answered by one line: ["ok", value], ["callable"],
["error", built-in type, message].

Guarantees: nothing. The policy's code runs in this process and can do to it what it likes; whoever reads the
answers trusts none of them."""

# ruff: noqa: F821 - dump, load, load_module and write_all stand in what is sent in front of this file
# pyright: reportUndefinedVariable=false

import os
import sys


def serve(folder, file, source, sink):
    """Load the file, then answer until the requests end."""
    names, broken = None, None
    sys.path.append(folder)
    try:
        names = load_module("solution", f"{folder}/{file}").__dict__
    except BaseException as error:  # noqa: BLE001 - whatever the policy's code raises is an answer
        broken = failure(error)
    with os.fdopen(source, "rb", closefd=False) as requests:
        for line in requests:
            reply = answer(names, load(line)) if broken is None else broken
            write_all(sink, reply.encode() + b"\n")


def answer(names, request):
    try:
        if request[1] not in names:
            return dump(["error", "AttributeError", f"the solution defines no {request[1]!r}"])
        value = names[request[1]]
        if request[0] == "get":
            return dump(["callable"] if callable(value) else ["ok", value])
        return dump(["ok", value(*request[2], **request[3])])
    except BaseException as error:  # noqa: BLE001 - whatever the policy's code raises is an answer
        return failure(error)


def failure(error):
    try:
        message = str(error)[:2000]
    except BaseException:  # noqa: BLE001 - the exception is the policy's own class
        message = ""
    kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins")
    return dump(["error", kind, f"{type(error).__name__}: {message}"])


def main():
    folder, file, source, sink = sys.argv[1:5]
    out = os.dup(1) if sink == "1" else int(sink)
    os.dup2(2, 1)
    serve(folder, file, int(source), out)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


main()
