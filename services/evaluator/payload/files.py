"""Files and descriptors without what Python puts around them; sent into sandboxes behind `values.py`.

Guarantees: neither the import system nor text streams are asked, which would take longer than most files run.
Does not: make packages, or give a module a spec."""

import os
import sys


def load_module(name, path):
    """Run a file as the module of this name; raises what it raises."""
    with open(path, "rb", 0) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(code, module.__dict__)
    return module


def read_all(source):
    """Everything up to the end."""
    parts = []
    while part := os.read(source, 65_536):
        parts.append(part)
    return b"".join(parts)


def write_all(sink, data):
    while data:
        data = data[os.write(sink, data) :]
