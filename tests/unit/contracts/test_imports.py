"""What is imported stays light: no torch beside the two services that compute, nothing heavy in contracts."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "vllm"}
LIGHT = {"tiltyard", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
PROBE = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
package = importlib.import_module(sys.argv[1])
found = [sys.argv[1]]
for module in pkgutil.walk_packages(getattr(package, "__path__", []), sys.argv[1] + "."):
    if ".payload" not in module.name and not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
        found.append(module.name)
new = {name.partition(".")[0] for name in set(sys.modules) - before if not name.startswith("_sysconfigdata")}
json.dump({"found": found, "new": sorted(new - set(sys.stdlib_module_names))}, sys.stdout)
"""


def _imported(package: str) -> tuple[list[str], set[str]]:
    """Modules of a package, and the third-party packages that importing them all loads."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, package],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["found"], set(answer["new"])


@pytest.mark.parametrize(
    "package",
    [
        "tiltyard.store",
        "tiltyard.queue",
        "services.registry",
        "services.dispatcher",
        "services.runner",
        "services.evaluator",
        "services.cli",
    ],
)
def test_no_service_that_runs_on_a_cpu_loads_a_framework(package: str) -> None:
    _, loaded = _imported(package)

    assert not loaded & HEAVY


def test_contracts_load_pydantic_and_the_standard_library_alone() -> None:
    found, loaded = _imported("tiltyard.contracts")

    assert "tiltyard.contracts.task_spec" in found
    assert loaded == LIGHT


def test_core_loads_the_standard_library_alone() -> None:
    found, loaded = _imported("tiltyard.core")

    assert "tiltyard.core.group" in found
    assert loaded == {"tiltyard"}
