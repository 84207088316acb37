"""Builds the two C helpers of the sandbox when the distribution is installed or a wheel is made.

Guarantees: a wheel carries helpers built from the source that it carries.
Does not: fail for want of a compiler. The install then works, and using the native sandbox is refused with
the cure until there is one (tiltyard.sandbox checks on use)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # pyright: ignore

_NATIVE = Path("libs", "tiltyard", "sandbox", "native")


def _toolchain(root: Path) -> ModuleType:
    """The module that also rebuilds stale helpers at run time; it imports nothing of ours."""
    spec = importlib.util.spec_from_file_location("tiltyard_toolchain", root / _NATIVE / "toolchain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class HelperBuildHook(BuildHookInterface[Any]):
    """Adds the C helpers to wheels and to the editable tree."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        toolchain = _toolchain(Path(self.root))
        try:
            helpers = toolchain.compile_helpers(toolchain.BINARIES)
        except toolchain.CompilerFault as error:
            self.app.display_warning(f"the native sandbox was not built: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            for path in (*helpers.programs, *helpers.host.parent.glob("*zygote*")):
                build_data["force_include"][str(path)] = f"tiltyard/sandbox/native/bin/{path.name}"
