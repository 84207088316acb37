"""A container's survey without what differs between any two: their names, and the way to us.

Guarantees: two containers of one pool that nobody has used have equal surveys here.
Does not: hide what a payload leaves: one connection without a name is ours, any other is told."""

import re

_NAMES = (
    (re.compile(r"[0-9a-f]{64}"), "*"),  # containers and their layers
    (re.compile(r"/l/[A-Z0-9]{26}"), "/l/*"),  # docker's short names of layers
    (re.compile(r"/\d+(//deleted)? /\.tilt/socket"), "/* /.tilt/socket"),
    (re.compile(r"[rw]fdno=\d+"), "fdno=*"),  # gVisor's, in the order of its mounts
)
_SOCKETS = "= /proc/net/unix"
_CONNECTED = re.compile(r"^\S+: \S+ \S+ \S+ 0001 03 +\d+(?P<path> \S+)?$")


def comparable(survey: str) -> str:
    """Of the text of `Box.survey`."""
    head, mark, tail = survey.partition(_SOCKETS)
    sockets, end, rest = tail.partition("\n= ")
    for pattern, instead in _NAMES:
        head = pattern.sub(instead, head)
    return head + mark + "\n".join(_without_ours(sockets.split("\n"))) + end + rest


def _without_ours(lines: list[str]) -> list[str]:
    """Without the two ends of the connection by which a box is spoken to; gVisor shows the near one alone."""
    kept: list[str] = []
    near = far = False
    for line in lines:
        found = _CONNECTED.match(line)
        path = (found["path"] or "").strip() if found else None
        if path == "" and not near:
            near = True
        elif path and path.endswith("/call") and not far:
            far = True
        else:
            kept.append(line)
    return kept
