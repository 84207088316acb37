"""The S3 store on a real S3 server: the laws of every store, and what only a network can get wrong."""

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tiltyard.objects import (
    ObjectCorrupt,
    ObjectStore,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    open_store,
)
from tiltyard.objects.s3 import S3Store, s3_client
from tiltyard.testing.object_store import ObjectStoreLaws
from tiltyard.testing.servers import S3Server
from tiltyard.testing.servers.daemon import free_ports
from tiltyard.testing.servers.s3 import BUCKET

pytestmark = pytest.mark.s3


@pytest.fixture
def store(s3_url: str) -> ObjectStore:
    store = open_store(s3_url)
    store.prepare()
    return store


def prefix_of(url: str) -> str:
    return urlsplit(url).path.strip("/")


class TestS3Store(ObjectStoreLaws):
    """`store` is the fixture above."""


def test_preparing_twice_changes_nothing(store: ObjectStore) -> None:
    store.put("key", b"x")
    store.prepare()
    assert set(store.list("")) == {"key"}


def test_two_prefixes_of_a_bucket_are_strangers(s3_url: str, store: ObjectStore) -> None:
    other = open_store(s3_url.replace("?", "0?"))
    store.put("key", b"1")
    other.put("key", b"2")
    assert store.get("key") == b"1"
    assert list(other.list("")) == ["key"]


def test_more_keys_than_a_page_are_all_listed(store: ObjectStore) -> None:
    keys = {f"many/{number}" for number in range(1_050)}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert sorted(store.list("many/")) == sorted(keys)


def test_a_signed_url_reads_without_credentials(store: ObjectStore) -> None:
    store.put("key", b"signed")
    url = store.signed_url("key", expires=timedelta(minutes=1))
    assert url is not None
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == b"signed"


def test_bytes_changed_behind_our_back_are_corrupt(
    s3_server: S3Server, s3_url: str, store: ObjectStore, tmp_path: Path
) -> None:
    store.put("key", b"the truth")
    client = s3_client(endpoint=s3_server.endpoint)
    place = {"Bucket": BUCKET, "Key": f"{prefix_of(s3_url)}/key"}
    recorded = client.head_object(**place)["Metadata"]
    client.put_object(**place, Body=b"another truth", Metadata=recorded)
    with pytest.raises(ObjectCorrupt, match=r"'key'.* is corrupt"):
        store.get("key")
    with pytest.raises(ObjectCorrupt):
        store.get_to("key", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_an_object_of_strangers_is_not_trusted(s3_server: S3Server, s3_url: str, store: ObjectStore) -> None:
    client = s3_client(endpoint=s3_server.endpoint)
    client.put_object(Bucket=BUCKET, Key=f"{prefix_of(s3_url)}/key", Body=b"x")
    with pytest.raises(ObjectCorrupt, match="no recorded sha256"):
        store.get("key")


@pytest.mark.usefixtures("s3_credentials")
def test_a_missing_bucket_is_refused(s3_server: S3Server) -> None:
    store = S3Store(s3_client(endpoint=s3_server.endpoint), bucket="nobody-made-this")
    with pytest.raises(ObjectStoreRefused, match="check bucket"):
        store.put("key", b"x")


def test_missing_credentials_are_refused_with_the_cure(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in S3Server.credentials():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    store = S3Store(s3_client(endpoint=s3_server.endpoint), bucket="any")
    with pytest.raises(ObjectStoreRefused, match="set AWS_ACCESS_KEY_ID"):
        store.get("key")


def test_wrong_credentials_are_refused(s3_server: S3Server) -> None:
    client = s3_client(endpoint=s3_server.endpoint, credentials=("tiltyard-test", "wrong"))
    with pytest.raises(ObjectStoreRefused, match="credentials"):
        S3Store(client, bucket=BUCKET).put("key", b"x")


@pytest.mark.usefixtures("s3_credentials")
def test_a_dead_server_is_unavailable() -> None:
    (port,) = free_ports(1)
    store = open_store(f"s3://bucket?endpoint=http://127.0.0.1:{port}")
    with pytest.raises(ObjectStoreUnavailable, match="try again later"):
        store.put("key", b"x")
