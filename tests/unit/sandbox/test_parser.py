"""The only code in a box that takes apart what a peer sent, under sanitizers and a storm of broken frames.

`infra/dev/fuzz MINUTES` goes on for as long as it is told."""

import random
import subprocess
from pathlib import Path

import pytest

from tiltyard.sandbox.native import toolchain

ROUNDS = 200_000
FLAGS = ("-std=gnu17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COVERED = "-fsanitize-coverage=trace-pc"
HERE = Path(__file__).parent

needs_compiler = pytest.mark.skipif(toolchain.find_compiler() is None, reason="needs a C compiler")


def build(folder: Path, parser: Path) -> Path:
    """The fuzzer; only what is fuzzed tells which code it reaches."""
    compiler = toolchain.find_compiler()
    assert compiler is not None
    fuzzer, objects = folder / "fuzz", []
    parts = {parser: (COVERED,), HERE / "fuzz_target.c": (COVERED,), HERE / "fuzz_drive.c": ()}
    for source, extra in parts.items():
        objects.append(folder / f"{source.stem}.o")
        command = [compiler, *FLAGS, *extra, f"-I{toolchain.SOURCES}", "-c", "-o", objects[-1], source]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if "unrecognized" in built.stderr or "unsupported" in built.stderr:
            pytest.skip("the compiler has no sanitizers")
        assert built.returncode == 0, built.stderr
    linked = subprocess.run(
        [compiler, *FLAGS, "-o", fuzzer, *objects], capture_output=True, text=True, check=False
    )
    if "cannot find" in linked.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert linked.returncode == 0, linked.stderr
    return fuzzer


@needs_compiler
def test_no_frame_however_broken_leads_the_parser_outside_it(tmp_path: Path) -> None:
    fuzzer = build(tmp_path, toolchain.SOURCES / "init" / "parse.c")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    seed = str(random.randrange(1 << 60))
    ran = subprocess.run([fuzzer, str(ROUNDS), seed, corpus], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (seed, ran.stderr)
    rounds, accepted, kept, edges = map(int, ran.stdout.split())
    assert rounds == ROUNDS
    assert 1 < accepted < ROUNDS, "the storm must hold frames of both kinds"
    assert kept > 10, "it must find its way to code that the first frames do not reach"
    assert edges > kept
    assert len(list(corpus.iterdir())) >= kept - 3, "what was found is kept"


@needs_compiler
def test_a_parser_that_trusts_a_length_is_found_out(tmp_path: Path) -> None:
    """So the storm is one: a single check that is left out is found within it."""
    parser = (toolchain.SOURCES / "init" / "parse.c").read_text()
    check = "if (how->path_size > (size_t)(end - *cursor) ||"
    assert check in parser
    broken = tmp_path / "parse.c"
    broken.write_text(parser.replace(check, "if (").replace('"init.h"', '"init/init.h"'))
    fuzzer = build(tmp_path, broken)
    ran = subprocess.run([fuzzer, str(ROUNDS), "1"], capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "AddressSanitizer" in ran.stderr
