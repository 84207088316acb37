"""Answers as OpenAI's completion objects.

Guarantees: `token_ids`, log-probabilities and policy versions of a choice are equally many.
Does not: validate what it builds; it is plain data on the hot path."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from services.rollout.engine import Answer, Policy


def completion(
    model: str, answers: Sequence[Answer], *, logprobs: int | None, token_ids: bool
) -> dict[str, Any]:
    """A `text_completion` object; `model` is as the request wrote it."""
    run = model.rpartition("@")[0]
    prompt, generated = len(answers[0].prompt_token_ids), sum(len(a.token_ids) for a in answers)
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": f"{run}@{answers[0].policy.version}",
        "choices": [_choice(i, a, logprobs, token_ids) for i, a in enumerate(answers)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        },
    }


def _choice(index: int, answer: Answer, logprobs: int | None, token_ids: bool) -> dict[str, Any]:
    version = answer.policy.version
    choice: dict[str, Any] = {
        "index": index,
        "text": answer.text,
        "finish_reason": str(answer.finish),
        "logprobs": None if logprobs is None else _logprobs(answer),
        "policy_version": version,
        "policy_versions": [version] * len(answer.token_ids),
    }
    if token_ids:
        choice["token_ids"] = answer.token_ids
        choice["prompt_token_ids"] = answer.prompt_token_ids
    return choice


def _logprobs(answer: Answer) -> dict[str, Any]:
    """OpenAI's parallel lists; offsets count characters from the start of the completion."""
    policy, read, offsets = answer.policy, bytearray(), []
    for token in answer.token_ids:
        offsets.append(len(read.decode("utf-8", "ignore")) if not read.isascii() else len(read))
        read += policy.bytes_of(token)
    return {
        "tokens": [shown(policy, token) for token in answer.token_ids],
        "token_logprobs": answer.logprobs,
        "text_offset": offsets,
        "top_logprobs": [{shown(policy, t): p for t, p in top.items()} for top in answer.top] or None,
    }


def shown(policy: Policy, token: int) -> str:
    """A token as text; one that is only part of a character as `bytes:\\xe2`, as OpenAI writes it."""
    piece = policy.bytes_of(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def json_response(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`body` as a JSON response."""
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status, headers, media_type="application/json")
