"""Objects in an S3 bucket, through boto3.

Guarantees: the SHA-256 travels as metadata of the object and is checked on every read; a read that comes
out short or wrong is tried again before it is called corrupt; large objects go up in parts.
Does not: rely on the checksum features of one vendor; any S3 server with conditional writes will do."""

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from boto3.session import Session
from botocore.config import Config

from tiltyard.core.retry import backoff
from tiltyard.objects.s3_failure import KeyTaken, translated
from tiltyard.objects.s3_multipart import PART, upload_parts
from tiltyard.objects.store import (
    ObjectCorrupt,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreUnavailable,
    checked_key,
    checked_prefix,
    conflict,
    corrupt,
    sha256_of,
)

T = TypeVar("T")

CHUNK = 1 << 20
READS = 3
"""Reads of an object that comes out short or wrong, before it is called corrupt or unavailable."""


def s3_client(
    *, endpoint: str | None = None, region: str | None = None, credentials: tuple[str, str] | None = None
) -> Any:
    """A thread-safe boto3 client with bounded waits; credentials by boto3's conventions unless given."""
    config = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "adaptive", "total_max_attempts": 5},
        max_pool_connections=32,
        signature_version="s3v4",
        s3={"addressing_style": "path"} if endpoint else {},
    )
    access, secret = credentials or (None, None)
    session = Session(aws_access_key_id=access, aws_secret_access_key=secret)
    name = region or session.region_name or "us-east-1"
    return session.client("s3", endpoint_url=endpoint, region_name=name, config=config)


class S3Store:
    """An `ObjectStore` in one bucket, below one prefix."""

    def __init__(self, client: Any, *, bucket: str, prefix: str = "") -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{checked_key(prefix)}/" if prefix else ""
        self._name = f"s3://{bucket}/{prefix}"

    def prepare(self) -> None:
        try:
            self._call("", self._client.head_bucket, Bucket=self._bucket)
        except ObjectMissing:
            self._call("", self._client.create_bucket, Bucket=self._bucket)
        probe = f"probe-{uuid4().hex}"
        self.put(probe, b"probe")
        self.get(probe)
        self.delete(probe)

    def put(self, key: str, data: bytes | Path, *, if_absent: bool = False) -> ObjectInfo:
        checked_key(key)
        sha256, size = sha256_of(data)
        info = ObjectInfo(key=key, size=size, sha256=sha256)
        try:
            self._upload(info, data, {"IfNoneMatch": "*"} if if_absent else {})
        except KeyTaken:
            present = self.stat(key)
            if present.sha256 != sha256:
                raise conflict(key, self._name, present=present.sha256, wanted=sha256) from None
        return info

    def get(self, key: str) -> bytes:
        place = self._place(key)
        return self._verified(key, lambda: self._read(key, place))

    def get_to(self, key: str, path: Path) -> ObjectInfo:
        place = self._place(key)
        part = path.with_name(f".{path.name[:100]}.{uuid4().hex}")
        try:
            info = self._verified(key, lambda: self._download(key, place, part))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return info

    def stat(self, key: str) -> ObjectInfo:
        head = self._call(key, self._client.head_object, Bucket=self._bucket, Key=self._place(key))
        return ObjectInfo(key=key, size=head["ContentLength"], sha256=self._recorded(key, head))

    def exists(self, key: str) -> bool:
        try:
            self._call(key, self._client.head_object, Bucket=self._bucket, Key=self._place(key))
        except ObjectMissing:
            return False
        return True

    def list(self, prefix: str) -> Iterator[str]:
        checked_prefix(prefix)
        token: dict[str, str] = {}
        while True:
            page = self._call(
                prefix,
                self._client.list_objects_v2,
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                **token,
            )
            for entry in page.get("Contents", ()):
                yield entry["Key"].removeprefix(self._prefix)
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        self._call(key, self._client.delete_object, Bucket=self._bucket, Key=self._place(key))

    def signed_url(self, key: str, *, expires: timedelta) -> str | None:
        return self._client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": self._place(key)},
            ExpiresIn=max(1, int(expires.total_seconds())),
        )

    def _place(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _upload(self, info: ObjectInfo, data: bytes | Path, condition: dict[str, str]) -> None:
        target = {"Bucket": self._bucket, "Key": self._place(info.key)}
        metadata = {"sha256": info.sha256}
        with translated(self._name, info.key):
            if info.size <= PART:
                body = data if isinstance(data, bytes) else data.read_bytes()
                self._client.put_object(**target, Body=body, Metadata=metadata, **condition)
            else:
                upload_parts(self._client, target, data, info.size, metadata=metadata, condition=condition)

    def _read(self, key: str, place: str) -> bytes:
        answer = self._call(key, self._client.get_object, Bucket=self._bucket, Key=place)
        data = b"".join(self._chunks(key, answer))
        self._check(key, answer, hashlib.sha256(data).hexdigest())
        return data

    def _download(self, key: str, place: str, path: Path) -> ObjectInfo:
        answer = self._call(key, self._client.get_object, Bucket=self._bucket, Key=place)
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for chunk in self._chunks(key, answer):
                digest.update(chunk)
                file.write(chunk)
            size = file.tell()
        self._check(key, answer, digest.hexdigest())
        return ObjectInfo(key=key, size=size, sha256=digest.hexdigest())

    def _chunks(self, key: str, answer: Any) -> Iterator[bytes]:
        with translated(self._name, key), contextlib.closing(answer["Body"]) as body:
            yield from body.iter_chunks(CHUNK)

    def _check(self, key: str, answer: Any, actual: str) -> None:
        expected = self._recorded(key, answer)
        if actual != expected:
            raise corrupt(key, self._name, expected=expected, actual=actual)

    def _recorded(self, key: str, head: Any) -> str:
        try:
            return head["Metadata"]["sha256"]
        except KeyError:
            raise ObjectCorrupt(
                f"object {key!r} in {self._name} has no recorded sha256: it was not put by Tiltyard"
            ) from None

    def _verified(self, key: str, read: Callable[[], T]) -> T:
        """Read until the bytes are right, `READS` times at most, with jittered waits."""
        for failures in range(1, READS):
            try:
                return read()
            except (ObjectCorrupt, ObjectStoreUnavailable):
                time.sleep(backoff(failures, jitter=random.random()).total_seconds())
        return read()

    def _call(self, key: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with translated(self._name, key):
            return function(*args, **kwargs)
