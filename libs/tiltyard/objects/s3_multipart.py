"""Uploading a large object in parts.

Guarantees: the object appears whole or not at all, under the same condition as a single put (boto3's own
transfer does not take `IfNoneMatch`); parts of an upload that failed are removed.
Does not: survive the process; an upload that was killed leaves parts for the bucket's lifecycle rule."""

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

PART = 16 << 20
"""Bytes of a part; S3 allows 10,000 parts, so 156 GiB."""
PARALLEL = 4


def upload_parts(
    client: Any,
    target: dict[str, str],
    data: bytes | Path,
    size: int,
    *,
    metadata: dict[str, str],
    condition: dict[str, str],
) -> None:
    """Upload to `target` (Bucket and Key); raises what boto3 raises."""
    upload = target | {"UploadId": client.create_multipart_upload(**target, Metadata=metadata)["UploadId"]}
    try:
        with ThreadPoolExecutor(PARALLEL) as pool:
            parts = list(pool.map(lambda number: _put(client, upload, data, number), _numbers(size)))
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **condition)
    except BaseException:  # the parts cost money, whatever stopped us
        with contextlib.suppress(ClientError, BotoCoreError):
            client.abort_multipart_upload(**upload)
        raise


def _numbers(size: int) -> Iterable[int]:
    return range(1, -(-size // PART) + 1)


def _put(client: Any, upload: dict[str, str], data: bytes | Path, number: int) -> dict[str, Any]:
    body = _part(data, (number - 1) * PART)
    answer = client.upload_part(**upload, PartNumber=number, Body=body)
    return {"PartNumber": number, "ETag": answer["ETag"]}


def _part(data: bytes | Path, start: int) -> bytes:
    if isinstance(data, bytes):
        return data[start : start + PART]
    with data.open("rb") as file:
        file.seek(start)
        return file.read(PART)
