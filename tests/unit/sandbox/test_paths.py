"""Which paths a caller may name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.sandbox import InvalidPath
from tiltyard.sandbox.paths import Root, locate


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("main.py", Root.home, b"main.py"),
        ("./a//b/./c", Root.home, b"a/b/c"),
        ("/box/a", Root.home, b"a"),
        ("//tmp//a", Root.tmp, b"a"),
        ("/tmp/ä", Root.tmp, "ä".encode()),
        ("...", Root.home, b"..."),
    ],
)
def test_a_path_below_a_folder_of_the_box_is_found(path: str, root: Root, below: bytes) -> None:
    assert locate(path) == (root, below)


@pytest.mark.parametrize(
    ("path", "reason"),
    [("a\0", "NUL"), ("a/../b", "'..'"), ("/etc/x", "outside"), ("/boxer/x", "outside"), ("/box", "no file"),
     ("", "no file"),
     ("a/", "no file"), ("\udc80", "UTF-8"), ("x" * 256, "too long"), ("a/" * 2001 + "a", "too long")],
)  # fmt: skip
def test_any_other_path_is_refused_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(InvalidPath, match=reason):
        locate(path)


@given(st.text())
def test_whatever_passes_names_something_below(path: str) -> None:
    try:
        _, below = locate(path)
    except InvalidPath:
        return
    parts = below.split(b"/")
    assert below
    assert b"\0" not in below
    assert not {b"", b".", b".."} & set(parts)
