"""tilt-host and tilt-init, built with the sanitizers of addresses and undefined behaviour, serve real boxes.

A finding ends the helper, so a command ends as `infra_error` or no box comes at all. The report itself goes
to the helper's stderr: `strace -f -e write` on it shows it."""

import subprocess
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import Lab
from tiltyard.sandbox import NativeBackend, WarmPool
from tiltyard.sandbox.abuse import ATTACKS, Verdict, assail
from tiltyard.sandbox.conformance import LIMITS, conform
from tiltyard.sandbox.native import toolchain

pytestmark = pytest.mark.sandbox

FLAGS = (
    *("-std=gnu17", "-O1", "-g0", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer", "-fPIE", "-pie"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-strict-aliasing"),
)
OPTIONS = 'const char *__asan_default_options(void) { return "detect_leaks=0:disable_coredump=1"; }\n'
"""A leak check would trace the process, which tilt-init forbids."""
ROWS = {9, 11, 14, 29, 30, 31, 32, 33, 42, 44}
"""What goes through the parser, the files, the streams and the reaping."""


@pytest.fixture(scope="module")
def helpers(tmp_path_factory: pytest.TempPathFactory) -> toolchain.Helpers:
    """Without a warm interpreter: what has no sanitizer does not load what has."""
    compiler = toolchain.find_compiler()
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("sanitized")
    options = folder / "options.c"
    options.write_text(OPTIONS)
    made = toolchain.Helpers.within(folder)
    for name, program in (("host", made.host), ("init", made.init)):
        sources = [options, *toolchain._sources(name)]
        command = [compiler, *FLAGS, '-DTILT_SOURCE_HASH="sanitized"', "-o", program, *sources]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if "cannot find" in built.stderr:
            pytest.skip("the compiler has no sanitizers")
        assert built.returncode == 0, built.stderr
    return made


def test_every_law_holds_and_no_sanitizer_finds_anything(lab: Lab, helpers: toolchain.Helpers) -> None:
    async def run() -> list[str]:
        async with WarmPool(size=3, limits=LIMITS, backend=NativeBackend(helpers=helpers)) as pool:
            laws = [f"{f.law}: {f.detail}" async for f in conform(pool) if not f.holds]
            attacks = [attack for attack in ATTACKS if attack.row in ROWS]
            return laws + [str(f) async for f in assail(pool, attacks) if f.verdict is not Verdict.defended]

    assert lab.run(run()) == []


def test_a_finding_ends_a_program_that_is_built_so(tmp_path: Path, helpers: toolchain.Helpers) -> None:
    over = tmp_path / "over.c"
    over.write_text(
        "#include <stdlib.h>\n"
        "int main(void) { volatile int at = 8; char *page = calloc(1, 8); return page ? page[at] : 0; }\n"
    )
    compiler = toolchain.find_compiler()
    assert compiler is not None
    subprocess.run([compiler, *FLAGS, "-o", tmp_path / "over", over], check=True)
    said = subprocess.run([tmp_path / "over"], capture_output=True, text=True, check=False)
    assert said.returncode != 0
    assert "0x" in said.stderr
