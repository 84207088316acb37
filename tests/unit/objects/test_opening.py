"""URLs of stores: what opens, and what a wrong one is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from tiltyard.objects import open_store
from tiltyard.objects.directory import DirectoryStore
from tiltyard.objects.s3 import S3Store


def test_a_file_url_opens_the_folder(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/with%20space")
    assert isinstance(store, DirectoryStore)
    assert store.root == tmp_path / "with space"


def test_an_s3_url_opens_the_bucket() -> None:
    assert isinstance(
        open_store("s3://bucket/deep/prefix?endpoint=http://127.0.0.1:1&region=eu-west-1"), S3Store
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "no known scheme"),
        ("/plain/path", "no known scheme"),
        ("gs://bucket", "no known scheme"),
        ("file://relative/path", "no absolute folder"),
        ("file:///", "no absolute folder"),
        ("file:///x?fsynk=1", r"unknown option 'fsynk'; did you mean 'fsync'\?"),
        ("file:///x?fsync=yes", "fsync must be 0 or 1"),
        ("s3:///prefix", "no bucket"),
        ("s3://b?endpont=http://x", r"did you mean 'endpoint'\?"),
        ("s3://b/a/../c", "segment"),
    ],
)
def test_a_wrong_url_is_told_what_is_right(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_store(url)


def test_a_directory_loads_no_boto3(tmp_path: Path) -> None:
    code = (
        "import sys; from tiltyard.objects import open_store; "
        f"open_store('file://{tmp_path}').prepare(); sys.exit('boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
