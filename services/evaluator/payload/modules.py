"""A file as a module; sent into sandboxes behind `values.py`.

Guarantees: the import system is not asked, which would take longer than to run most files.
Does not: make packages, or give a module a spec."""

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
