"""The Connect protocol as envd speaks it: JSON messages in envelopes.

Source: connectrpc.com/docs/protocol; each envelope is a byte of flags, four of length (big-endian), and a
message.
Does not: compress; the server is told so by our silence."""

import json
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

_HEAD = struct.Struct(">BI")
_COMPRESSED, _LAST = 1, 2
_MOST_MESSAGE = 16 << 20

STREAM = {"content-type": "application/connect+json", "connect-protocol-version": "1"}
UNARY = {"content-type": "application/json", "connect-protocol-version": "1"}


class Malformed(Exception):
    """What came is not the protocol."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream; the last one tells how it ended."""

    document: dict[str, Any]
    is_last: bool


def envelope(document: dict[str, Any]) -> bytes:
    data = json.dumps(document).encode()
    return _HEAD.pack(0, len(data)) + data


async def messages(chunks: AsyncIterator[bytes]) -> AsyncGenerator[Message, None]:
    """Ends with the stream, whether or not a last message came. Raises Malformed."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(buffer)
            if flags & _COMPRESSED or size > _MOST_MESSAGE:
                raise Malformed(f"a message with flags {flags} and {size} bytes")
            if len(buffer) < _HEAD.size + size:
                break
            data = bytes(buffer[_HEAD.size : _HEAD.size + size])
            del buffer[: _HEAD.size + size]
            yield Message(_document(data), bool(flags & _LAST))


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data or b"{}")
    except ValueError as error:
        raise Malformed(f"a message that is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise Malformed("a message that is no object")
    return document
