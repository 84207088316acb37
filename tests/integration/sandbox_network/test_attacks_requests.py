"""Attacks by what is said on the way out: requests and greetings that mean two things."""

import ssl

import pytest

from tests.integration.sandbox_network.conftest import Town
from tiltyard.sandbox.network import Reason

pytestmark = pytest.mark.sandbox


HEAD = "POST http://good.test:{port}/ok HTTP/1.1\r\nHost: good.test:{port}\r\n"
HIDDEN = "GET /hidden HTTP/1.1\r\nHost: evil.test\r\n\r\n"
SMUGGLED = (
    HEAD + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: 0\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: +0\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: 0, 60\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + "X: y\rContent-Length: 60\r\n\r\n" + HIDDEN,
    HEAD + "X\0: y\r\n\r\n" + HIDDEN,
    HEAD + " folded: y\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    HEAD + "Content-Length: 0\r\n\r\n" + HIDDEN,
    HEAD + "Connection: host\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    HEAD + "Connection: content-length\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    HEAD + "Host: evil.test\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    HEAD.replace("Host: good.test", "Host: evil.test") + "Content-Length: 0\r\n\r\n",
    HEAD.replace("Host: good.test:{port}", "Host: good.test:1") + "Content-Length: 0\r\n\r\n",
    HEAD.replace("good.test:{port}/ok", "good.test:{port}/ok#@evil.test/") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "https://") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "http:/") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "http://evil.test\\@") + "\r\n" + HIDDEN,
    HEAD.replace("http://", "ftp://") + "\r\n" + HIDDEN,
    HEAD.replace("/ok", "/ok\thidden") + "\r\n" + HIDDEN,
    HEAD.replace(" HTTP/1.1", " HTTP/9.9", 1) + "\r\n" + HIDDEN,
    "GET /hidden HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT good.test:{port} HTTP/1.1\r\nHost: evil.test\r\n\r\n" + HIDDEN,
    "CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    "CONNECT good.test:{port}/hidden HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT http://good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n" + HIDDEN,
    "CONNECT good.test:0{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "CONNECT good.test:+{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "CONNECT good.test:99999 HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n" + HIDDEN,
    "\x05\x01\x00" + HIDDEN,
    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + HIDDEN,
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
)


def test_no_second_request_is_hidden_in_an_allowed_one(town: Town) -> None:
    code = f"""
port = sys.argv[1]
for raw in {SMUGGLED!r}:
    print(say(raw.replace("{{port}}", port).encode("latin-1")).split(b"\\r\\n")[0].decode())
"""
    said = town.play(code, connections_per_second=1000)
    assert len(said) == len(SMUGGLED)
    for heard in town.server.heard:
        assert heard.startswith(b"POST /ok HTTP/1.1\r\nhost: good.test:%d\r\n" % town.server.port), heard
        assert heard.count(b"HTTP/1.1") == 1, heard
        assert not (b"content-length:" in heard and b"transfer-encoding:" in heard), heard
        assert b"hidden" not in heard, heard
    for raw, answer in zip(SMUGGLED, said, strict=True):
        assert answer.split()[1] in ("200", "400", "403", "501"), (raw, answer)
    assert len(town.records) == len(SMUGGLED)


def greeting(name: str | None) -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (greeting("good.test"), Reason.done),
        (greeting("GOOD.test"), Reason.done),
        (greeting(None), Reason.done),
        (b"\x17 no greeting", Reason.done),
        (greeting("evil.test"), Reason.host_mismatch),
        (greeting("good.test.evil.test"), Reason.host_mismatch),
        (greeting("good.test").replace(b"good.test", b"evil\0test"), Reason.bad_request),
        (b"\x16\x03\x01\x02\x00 no greeting" + b"x" * 600, Reason.bad_request),
        (b"\x16\x03\x01", Reason.broken),
    ],
    ids=["same", "case", "nameless", "no TLS", "another", "longer", "NUL", "malformed", "cut off"],
)
def test_a_tls_greeting_goes_to_the_host_of_its_tunnel_alone(
    town: Town, hello: bytes, reason: Reason
) -> None:
    """In three pieces, so that none of them is judged for the whole."""
    code = """
s, hello = tunnel(f"good.test:{sys.argv[1]}"), bytes.fromhex(sys.argv[2])
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for part in hello[:1], hello[1:40], hello[40:]:
    if part: s.sendall(part); time.sleep(.02)
s.shutdown(1); rest(s)
"""
    town.play(code, hello.hex())
    assert town.reasons() == [reason]
    assert b"".join(town.server.heard) == (hello if reason is Reason.done else b"")
