"""What every object store obeys, and a store in memory that obeys it.

Guarantees: a backend whose tests subclass `ObjectStoreLaws` behaves as `tiltyard.objects` says.
Does not: damage stored bytes, which only a backend's own test can do."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Lock

import pytest

from tiltyard.objects import InvalidKey, ObjectConflict, ObjectInfo, ObjectMissing, ObjectStore
from tiltyard.objects.store import checked_key, checked_prefix, conflict, sha256_of

BAD_KEYS = [
    "",
    "/etc/passwd",
    "../outside",
    "a/../../outside",
    "a//b",
    "a/",
    "a/./b",
    "nul\0",
    "line\nbreak",
    "back\\slash",
    "lone\ud800surrogate",
    "x" * 201,
    "/".join(["x" * 99] * 10),
]


class MemoryStore:
    """An `ObjectStore` in a dictionary."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = Lock()

    def prepare(self) -> None:
        """Nothing to make."""

    def put(self, key: str, data: bytes | Path, *, if_absent: bool = False) -> ObjectInfo:
        content = data if isinstance(data, bytes) else data.read_bytes()
        with self._lock:
            present = self._objects.get(checked_key(key))
            if if_absent and present is not None and present != content:
                present_sha, wanted_sha = sha256_of(present)[0], sha256_of(content)[0]
                raise conflict(key, "memory", present=present_sha, wanted=wanted_sha)
            self._objects[key] = content
        return self.stat(key)

    def get(self, key: str) -> bytes:
        try:
            return self._objects[checked_key(key)]
        except KeyError:
            raise ObjectMissing(f"no object {key!r} in memory") from None

    def get_to(self, key: str, path: Path) -> ObjectInfo:
        path.write_bytes(self.get(key))
        return self.stat(key)

    def stat(self, key: str) -> ObjectInfo:
        sha256, size = sha256_of(self.get(key))
        return ObjectInfo(key=key, size=size, sha256=sha256)

    def exists(self, key: str) -> bool:
        return checked_key(key) in self._objects

    def list(self, prefix: str) -> Iterator[str]:
        checked_prefix(prefix)
        return iter([key for key in self._objects if key.startswith(prefix)])

    def delete(self, key: str) -> None:
        self._objects.pop(checked_key(key), None)

    def signed_url(self, key: str, *, expires: timedelta) -> str | None:
        checked_key(key)
        return None


class ObjectStoreLaws:
    """Subclass it, and give a `store` fixture: a fresh, prepared store."""

    def test_what_was_put_is_what_is_read(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 40
        info = store.put("runs/r1/a.bin", data)
        expected = ObjectInfo(key="runs/r1/a.bin", size=10_240, sha256=hashlib.sha256(data).hexdigest())
        assert info == expected
        assert store.get("runs/r1/a.bin") == data
        assert store.stat("runs/r1/a.bin") == expected

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.put("empty", b"")
        assert store.get("empty") == b""
        assert store.stat("empty").size == 0
        assert store.exists("empty")

    def test_a_file_travels_both_ways(self, store: ObjectStore, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(b"weights" * 1000)
        put = store.put("policies/1/model", source)
        assert store.get_to("policies/1/model", target) == put
        assert target.read_bytes() == source.read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]

    def test_a_large_file_travels_whole(self, store: ObjectStore, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(hashlib.shake_256(b"seed").digest(40_000_001))
        put = store.put("large", source, if_absent=True)
        assert put.size == 40_000_001
        assert store.get_to("large", target) == put
        assert target.read_bytes() == source.read_bytes()

    def test_a_large_object_under_a_taken_key_is_refused(self, store: ObjectStore) -> None:
        first, other = b"1" * 20_000_000, b"2" * 20_000_000
        store.put("large", first, if_absent=True)
        assert store.put("large", first, if_absent=True).size == 20_000_000
        with pytest.raises(ObjectConflict, match="already holds other bytes"):
            store.put("large", other, if_absent=True)
        assert store.get("large") == first

    def test_a_missing_key_is_an_error_that_names_it(self, store: ObjectStore, tmp_path: Path) -> None:
        for read in (store.get, store.stat, lambda key: store.get_to(key, tmp_path / "target")):
            with pytest.raises(ObjectMissing, match="'no/such/key'"):
                read("no/such/key")
        assert not store.exists("no/such/key")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_of_keys_is_no_object(self, store: ObjectStore) -> None:
        store.put("folder/key", b"1")
        assert not store.exists("folder")
        with pytest.raises(ObjectMissing):
            store.get("folder")

    def test_putting_again_replaces(self, store: ObjectStore) -> None:
        store.put("key", b"old")
        store.put("key", b"new")
        assert store.get("key") == b"new"

    def test_an_immutable_key_takes_the_same_bytes_again(self, store: ObjectStore) -> None:
        first = store.put("key", b"bytes", if_absent=True)
        assert store.put("key", b"bytes", if_absent=True) == first

    def test_an_immutable_key_refuses_other_bytes(self, store: ObjectStore) -> None:
        store.put("key", b"bytes", if_absent=True)
        with pytest.raises(ObjectConflict, match=r"'key'.* already holds other bytes"):
            store.put("key", b"other", if_absent=True)
        assert store.get("key") == b"bytes"

    def test_of_many_writers_of_one_immutable_key_one_wins(self, store: ObjectStore) -> None:
        def write(number: int) -> bool:
            try:
                store.put("contested", str(number).encode(), if_absent=True)
            except ObjectConflict:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(write, range(8)))
        assert won.count(True) == 1
        assert store.get("contested") == str(won.index(True)).encode()

    def test_readers_beside_a_writer_see_whole_objects(self, store: ObjectStore) -> None:
        versions = [bytes([letter]) * 50_000 for letter in b"abcdef"]
        store.put("busy", versions[0])

        def read(_: int) -> bytes:
            return store.get("busy")

        with ThreadPoolExecutor(4) as pool:
            reads = [pool.submit(read, number) for number in range(24)]
            for version in versions:
                store.put("busy", version)
            assert all(one.result() in versions for one in reads)

    def test_list_gives_the_keys_below_a_prefix(self, store: ObjectStore) -> None:
        keys = {"runs/r1/a", "runs/r1/b/c", "runs/r10/d", "runs/r2/e", "other"}
        for key in keys:
            store.put(key, b"x")
        assert set(store.list("")) == keys
        assert set(store.list("runs/r1/")) == {"runs/r1/a", "runs/r1/b/c"}
        assert set(store.list("runs/r1")) == {"runs/r1/a", "runs/r1/b/c", "runs/r10/d"}
        assert set(store.list("nothing/")) == set()

    def test_delete_removes_and_may_be_repeated(self, store: ObjectStore) -> None:
        store.put("a/b/key", b"x")
        store.delete("a/b/key")
        store.delete("a/b/key")
        assert not store.exists("a/b/key")
        assert list(store.list("")) == []

    def test_the_name_of_an_emptied_folder_may_become_a_key(self, store: ObjectStore) -> None:
        store.put("a/b", b"x")
        store.delete("a/b")
        store.put("a", b"y")
        assert store.get("a") == b"y"

    def test_unusual_names_are_names(self, store: ObjectStore) -> None:
        keys = {"ünïcode/模型", "with space", "per%20cent", "plus+and&amp;=?#", "'quote\"", "-dash", "~tilde"}
        for key in keys:
            store.put(key, key.encode())
        assert set(store.list("")) == keys
        assert all(store.get(key) == key.encode() for key in keys)

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_outside_the_grammar_is_refused(self, store: ObjectStore, key: str) -> None:
        for act in (lambda: store.put(key, b"x"), lambda: store.get(key), lambda: store.delete(key)):
            with pytest.raises(InvalidKey, match="object key"):
                act()

    def test_a_prefix_that_leads_out_is_refused(self, store: ObjectStore) -> None:
        for prefix in ("../", "/etc/", "a//b"):
            with pytest.raises(InvalidKey):
                list(store.list(prefix))
