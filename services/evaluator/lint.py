"""What is wrong with a task before anything is run.

Guarantees: reads the author's text as text; no line of it runs here.
Does not: find what only a run can show (`admission`)."""

import ast
import warnings
from collections.abc import Iterator

from services.evaluator.payload.values import dump
from tiltyard.contracts.task_spec import (
    CasesComponent,
    Component,
    HiddenSpec,
    PublicSpec,
    PythonTestsComponent,
)
from tiltyard.sandbox import InvalidNetwork, Network


def faults(public: PublicSpec, hidden: HiddenSpec) -> list[str]:
    """One line for each fault, each saying what to do; empty for a task that may be tried."""
    found = []
    if public.solution(hidden.oracle.answer).strip() == public.solution(hidden.oracle.noop).strip():
        found.append("oracle.answer and oracle.noop are the same: the no-op must be an answer that fails")
    if all(c.weight == 0 for c in hidden.verifier.components):
        found.append("every component of the verifier has weight 0: give at least one a weight")
    found += _network_faults(public, hidden)
    for component in hidden.verifier.components:
        found += [f"verifier component {component.name!r}: {fault}" for fault in _faults(component, public)]
    return found


def _network_faults(public: PublicSpec, hidden: HiddenSpec) -> Iterator[str]:
    kinds = {component.kind for component in hidden.verifier.components}
    for where, demand, users in (
        ("environment.network", public.environment.network, {"cases", "python_tests"}),
        ("verifier.network", hidden.verifier.network, {"python_tests"}),
    ):
        if isinstance(demand, str):
            continue
        if not kinds & users:
            yield f"{where} names hosts that no component reaches; {' and '.join(sorted(users))} do"
        try:
            Network.of(demand)
        except InvalidNetwork as error:
            yield f"{where}: {error}"


def _faults(component: Component, public: PublicSpec) -> Iterator[str]:
    match component:
        case PythonTestsComponent():
            yield from _test_faults(component)
        case CasesComponent():
            yield from _case_faults(component)
            if not public.interface.file.endswith(".py"):
                yield f"interface.file {public.interface.file!r} is no Python file"
        case _:
            return


def _case_faults(component: CasesComponent) -> Iterator[str]:
    seen: dict[str, int] = {}
    for index, case in enumerate(component.cases):
        first = seen.setdefault(dump(list(case.args)), index)
        if dump(case.expected) != dump(component.cases[first].expected):
            yield f"cases {first} and {index} make the same call and expect different values"


def _test_faults(component: PythonTestsComponent) -> Iterator[str]:
    defined: set[str] = set()
    for path, source in component.files.items():
        if path.endswith(".py"):
            module = path.removesuffix(".py").replace("/", ".")
            try:
                defined |= {f"{module}.{name}" for name in _tests_in(source)}
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                yield f"{path} cannot be parsed: {error}"
                return
    twice = sorted({t for t in component.expected if component.expected.count(t) > 1})
    missing = sorted(set(component.expected) - defined)
    unlisted = sorted(defined - set(component.expected))
    if twice:
        yield f"expected names {', '.join(twice)} more than once"
    if missing:
        yield f"expected names {', '.join(missing)}, which no file defines; ids are module.function"
    if unlisted:
        yield f"files define {', '.join(unlisted)}, which expected does not name: add them, or rename them"


def _tests_in(source: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the author's text makes Python warn about is not our fault
        tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node.name
