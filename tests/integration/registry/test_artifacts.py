"""Artifacts over HTTP."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.integration.registry.documents import BODY_LIMIT
from tiltyard.testing.rows import Rows


def test_an_upload_is_named_by_its_content_and_comes_back_whole(api: TestClient) -> None:
    data = bytes(range(256)) * 1_000
    answer = api.put("/v1/artifacts", content=data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert answer.status_code == 201
    assert answer.json() == {"digest": digest, "size": len(data)}
    assert api.put("/v1/artifacts", content=data).json()["digest"] == digest
    got = api.get(f"/v1/artifacts/{digest}")
    assert got.content == data
    assert got.headers["content-disposition"] == "attachment"


def test_an_upload_may_be_larger_than_a_document_but_not_than_its_own_limit(api: TestClient) -> None:
    def chunks(size: int) -> Iterator[bytes]:
        for _ in range(size // 100_000):
            yield b"x" * 100_000

    assert api.put("/v1/artifacts", content=chunks(BODY_LIMIT + 500_000)).status_code == 201
    assert api.put("/v1/artifacts", content=chunks(2 * BODY_LIMIT + 500_000)).status_code == 413


def test_nothing_of_an_upload_is_left_in_the_temporary_folder(
    api: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    digest = api.put("/v1/artifacts", content=b"abc").json()["digest"]
    api.get(f"/v1/artifacts/{digest}")
    api.get(f"/v1/artifacts/sha256:{'0' * 64}")
    assert list(scratch.iterdir()) == []


def test_an_artifact_that_is_not_there_and_a_name_that_is_none(api: TestClient) -> None:
    assert api.get(f"/v1/artifacts/sha256:{'0' * 64}").status_code == 404
    assert api.get("/v1/artifacts/..%2F..%2Fetc%2Fpasswd").status_code in (404, 422)
    assert api.get("/v1/artifacts/sha256:xyz").status_code == 422


def test_a_runs_objects_are_read_beneath_its_own_prefix_alone(
    api: TestClient, rows: Rows, objects: Any
) -> None:
    seeded = rows.run()
    objects.put(f"runs/{seeded.run_id}/policies/0/config.json", b"{}")
    objects.put("runs/other/secret", b"not yours")
    objects.put("artifacts/secret", b"not yours")
    base = f"/v1/runs/{seeded.run_id}/objects"
    assert api.get(f"{base}/policies/0/config.json").content == b"{}"
    assert api.get(f"{base}/policies/1/config.json").status_code == 404
    for name in (
        "..%2Fother%2Fsecret",
        "..%2F..%2Fartifacts%2Fsecret",
        "policies%2F..%2F..%2Fother%2Fsecret",
        "%2Fetc%2Fpasswd",
        "a%00b",
        "a%5C..%5Cb",
        "policies//0",
    ):
        answer = api.get(f"{base}/{name}")
        assert answer.status_code in (400, 404, 422), name
        assert b"not yours" not in answer.content
