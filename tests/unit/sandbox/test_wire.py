"""The Python side and the C side of the wire are the same wire."""

import re
import struct

import pytest

from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.native import wire
from tiltyard.sandbox.native.toolchain import SOURCES

HEADER = (SOURCES / "wire.h").read_text()


def enum(name: str) -> list[str]:
    """The names of an enum in wire.h, in order."""
    body = re.search(rf"enum {name} \{{(.*?)\}};", HEADER, re.DOTALL)
    assert body is not None
    return re.findall(r"\b([A-Z]+_[A-Z_]+)\b", re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL))


@pytest.mark.parametrize(
    ("name", "prefix", "ours"),
    [("tilt_event_kind", "TILT_", wire.Event), ("tilt_ask", "ASK_", wire.Ask), ("tilt_say", "SAY_", wire.Say),
     ("tilt_reason", "REASON_", wire.Reason)],
)  # fmt: skip
def test_names_and_numbers_agree_with_the_header(name: str, prefix: str, ours: type) -> None:
    assert [word.removeprefix(prefix).lower() for word in enum(name)] == [member.name for member in ours]  # type: ignore[attr-defined]


def test_every_step_of_making_a_box_has_words() -> None:
    assert len(wire.STEPS) == len(enum("tilt_step"))


def test_why_tilt_host_ends_is_told_in_a_packet_of_another_size_than_an_event() -> None:
    assert f"TILT_REASON = {wire.REASON_SIZE}" in HEADER
    assert wire.REASON_SIZE != wire.EVENT_SIZE


def test_frames_come_out_whole_however_they_arrive() -> None:
    whole = wire.write_frame(7, b"abc") + wire.kill_frame(8)
    buffer, frames = bytearray(), []
    for position in range(len(whole)):
        buffer += whole[position : position + 1]
        while (frame := wire.take_frame(buffer)) is not None:
            frames.append((frame.type, frame.id, frame.payload))
    assert frames == [(wire.Ask.write, 7, b"abc"), (wire.Ask.kill, 8, b"")]
    assert not buffer


def test_a_pool_request_has_the_header_s_layout() -> None:
    request = wire.pool_request(size=3, starting=2, limits=Limits(cpus=0.5), image="a" * 64)
    assert struct.unpack("=4I4Q4I64s", request)[:4] == (1, 3, 2, 64)
    assert request.endswith(b"a" * 64)
    assert len(request) == 128
