"""The directory store: the laws of every store, and what only a directory can get wrong."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from tiltyard.objects import (
    InvalidKey,
    ObjectCorrupt,
    ObjectStore,
    ObjectStoreUnavailable,
    open_store,
)
from tiltyard.objects.directory import CONTENT, DirectoryStore
from tiltyard.testing.object_store import ObjectStoreLaws


class TestDirectoryStore(ObjectStoreLaws):
    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
        store = open_store(f"file://{tmp_path_factory.mktemp('objects')}/store")
        store.prepare()
        return store


class TestDirectoryStoreWithFsync(ObjectStoreLaws):
    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
        return open_store(f"file://{tmp_path_factory.mktemp('objects')}?fsync=1")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def files(store: DirectoryStore) -> list[str]:
    found = (path for path in (store.root / CONTENT).rglob("*") if path.is_file())
    return sorted(path.name for path in found if path.name != "lock")


def test_changed_bytes_are_corrupt_and_never_returned(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("key", b"the truth")
    (store.root / "key").write_bytes(b"another truth")
    with pytest.raises(ObjectCorrupt, match=r"'key'.* is corrupt"):
        store.get("key")
    with pytest.raises(ObjectCorrupt, match=r"'key'.* is corrupt"):
        store.get_to("key", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_truncated_object_is_corrupt(store: DirectoryStore) -> None:
    store.put("key", b"x" * 10_000)
    os.truncate(store.root / "key", 5_000)
    with pytest.raises(ObjectCorrupt):
        store.get("key")


def test_a_key_whose_bytes_are_gone_is_corrupt(store: DirectoryStore) -> None:
    store.put("key", b"x")
    (store.root / "key").resolve().unlink()
    with pytest.raises(ObjectCorrupt, match="bytes that are gone"):
        store.get("key")


def test_replaced_and_deleted_objects_leave_no_bytes(store: DirectoryStore) -> None:
    for content in (b"1", b"2", b"3"):
        store.put("a/b", content)
    assert len(files(store)) == 1
    store.delete("a/b")
    assert files(store) == []


def test_a_refused_put_leaves_no_bytes(store: DirectoryStore) -> None:
    store.put("a", b"1", if_absent=True)
    with pytest.raises(InvalidKey, match="lies below another key"):
        store.put("a/b", b"2")
    store.put("c/d", b"3")
    with pytest.raises(InvalidKey, match="folder of other keys"):
        store.put("c", b"4")
    assert len(files(store)) == 2


def test_a_vanished_source_file_leaves_no_bytes(store: DirectoryStore, tmp_path: Path) -> None:
    store.prepare()
    with pytest.raises(ObjectStoreUnavailable, match="no-such-file"):
        store.put("key", tmp_path / "no-such-file")
    assert files(store) == []


def test_a_link_in_the_folder_leads_nowhere_outside(store: DirectoryStore, tmp_path: Path) -> None:
    store.prepare()
    (tmp_path / "outside").mkdir()
    (store.root / "door").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidKey, match="leads out of"):
        store.put("door/key", b"x")
    assert list((tmp_path / "outside").iterdir()) == []


def test_the_stores_own_folder_is_no_key(store: DirectoryStore) -> None:
    with pytest.raises(InvalidKey, match="own files"):
        store.put(f"{CONTENT}/lock", b"x")


def test_a_moved_store_still_reads(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("a/b/c", b"x")
    store.root.rename(tmp_path / "moved")
    assert DirectoryStore(tmp_path / "moved").get("a/b/c") == b"x"


def test_a_directory_signs_no_urls(store: DirectoryStore) -> None:
    store.put("key", b"x")
    assert store.signed_url("key", expires=timedelta(minutes=1)) is None
