"""The only code in a box that takes apart what a peer sent, under sanitizers and a storm of broken frames."""

import random
import subprocess
from pathlib import Path

import pytest

from tiltyard.sandbox.native import toolchain

ROUNDS = 300_000


@pytest.mark.skipif(toolchain.find_compiler() is None, reason="needs a C compiler")
def test_no_frame_however_broken_leads_the_parser_outside_it(tmp_path: Path) -> None:
    fuzzer = tmp_path / "fuzz"
    sources = [Path(__file__).with_name("fuzz_parse.c"), toolchain.SOURCES / "init" / "parse.c"]
    flags = ["-std=gnu17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = [toolchain.find_compiler(), *flags, f"-I{toolchain.SOURCES}", "-o", fuzzer, *sources]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    seed = str(random.randrange(1 << 60))
    ran = subprocess.run([fuzzer, str(ROUNDS), seed], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (seed, ran.stderr)
    assert 1 < int(ran.stdout) < ROUNDS, "the storm must hold frames of both kinds"
