"""A real S3 server behind a network that fails."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tiltyard.objects import ObjectStoreUnavailable
from tiltyard.objects.s3 import READS, S3Store, s3_client
from tiltyard.testing.proxy import Proxy, proxied
from tiltyard.testing.servers import S3Server
from tiltyard.testing.servers.s3 import BUCKET

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("s3_credentials")]
DATA = b"0123456789abcdef" * 65_536


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    port = urlsplit(s3_server.endpoint).port
    assert port is not None
    with proxied(port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, s3_url: str) -> S3Store:
    client = s3_client(endpoint=f"http://127.0.0.1:{proxy.port}")
    return S3Store(client, bucket=BUCKET, prefix=urlsplit(s3_url).path.strip("/"))


def test_a_read_that_breaks_off_is_tried_again(store: S3Store, proxy: Proxy, tmp_path: Path) -> None:
    store.put("key", DATA)
    proxy.truncate(200_000, times=1)
    assert store.get("key") == DATA
    proxy.truncate(200_000, times=1)
    store.get_to("key", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_read_that_always_breaks_off_fails_and_leaves_nothing(
    store: S3Store, proxy: Proxy, tmp_path: Path
) -> None:
    store.put("key", DATA)
    proxy.truncate(200_000, times=READS)
    with pytest.raises(ObjectStoreUnavailable, match="'key'"):
        store.get_to("key", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []
    assert store.get("key") == DATA


def test_a_cut_network_is_unavailable_until_it_is_back(store: S3Store, proxy: Proxy) -> None:
    store.put("key", DATA)
    proxy.cut()
    with pytest.raises(ObjectStoreUnavailable, match="try again later"):
        store.get("key")
    proxy.pass_on()
    assert store.get("key") == DATA
