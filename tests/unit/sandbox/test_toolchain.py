"""The helpers are what their source says, or are refused."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.sandbox.native import toolchain

needs_compiler = pytest.mark.skipif(toolchain.find_compiler() is None, reason="needs a C compiler")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the sources, with nothing built."""
    shutil.copytree(toolchain.SOURCES, tmp_path / "c")
    monkeypatch.setattr(toolchain, "SOURCES", tmp_path / "c")
    monkeypatch.setattr(toolchain, "BINARIES", tmp_path / "bin")
    toolchain.current_helpers.cache_clear()
    yield tmp_path
    toolchain.current_helpers.cache_clear()


def embedded(helper: Path) -> str:
    return subprocess.run([helper, "--hash"], capture_output=True, text=True, check=True).stdout.strip()


@needs_compiler
def test_missing_helpers_are_built_static_and_carry_the_hash_of_their_source(tree: Path) -> None:
    helpers = toolchain.current_helpers()
    for helper in helpers.programs:
        assert embedded(helper) == toolchain.source_hash()
        assert b"ld-linux" not in helper.read_bytes()[:4096]


@needs_compiler
def test_a_stale_helper_is_rebuilt(tree: Path) -> None:
    before = embedded(toolchain.current_helpers().init)
    with (tree / "c" / "wire.h").open("a") as header:
        header.write("/* changed */\n")
    toolchain.current_helpers.cache_clear()
    assert embedded(toolchain.current_helpers().init) == toolchain.source_hash() != before


@needs_compiler
def test_a_stale_helper_without_a_compiler_is_refused_with_the_cure(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain.current_helpers()
    (tree / "c" / "wire.h").write_text((tree / "c" / "wire.h").read_text() + "\n")
    toolchain.current_helpers.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(toolchain.CompilerFault, match="apt-get install gcc"):
        toolchain.current_helpers()


@needs_compiler
def test_a_source_that_does_not_compile_is_refused_with_what_the_compiler_said(tree: Path) -> None:
    (tree / "c" / "init" / "meter.c").write_text("int broken(")
    with pytest.raises(toolchain.CompilerFault, match=r"meter\.c"):
        toolchain.current_helpers()
    assert not (tree / "bin" / "tilt-init").exists()
