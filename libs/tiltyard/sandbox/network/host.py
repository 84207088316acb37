"""How a host is written: one way for each, so that a rule and a request mean the same by the same text.

Guarantees: what comes out is a DNS name in lower-case A-labels without a trailing dot, or an IP address in
its one usual notation; what another reader could take for something else is refused.
Does not: look names up."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import idna

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]+)(?::([^:]*))?")
_MOST_NAME = 253


class OddHost(ValueError):
    """A host or port that is not written as it should be."""


def canonical(text: str) -> str:
    """`Example.ORG.` → `example.org`, `Bücher.de` → `xn--bcher-kva.de`, `[0:0::1]` → `::1`.

    Raises OddHost."""
    if text.startswith("["):
        return _six(text)
    name = _ascii(text).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _MOST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise OddHost(f"{text[:80]!r} is no host name")
    if _NUMBER.fullmatch(labels[-1]):
        return _four(text, name)
    for label in labels:
        if label.startswith("xn--"):
            _check_punycode(text, label)
    return name


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a canonical host is, None for a name."""
    try:
        return IPv6Address(host) if ":" in host else IPv4Address(host)
    except AddressValueError:
        return None


def split(authority: str, default_port: int | None = None) -> tuple[str, int]:
    """`HOST:PORT` → canonical host and port. Raises OddHost, also without a port when there is no default."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise OddHost(f"{authority[:80]!r} is not HOST:PORT")
    host, port = found.groups()
    if port is None and default_port is not None:
        return canonical(host), default_port
    if port is None or not _PORT.fullmatch(port) or int(port) > 65535:
        raise OddHost(f"{authority[:80]!r} has no port from 1 to 65535")
    return canonical(host), int(port)


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    try:
        return idna.encode(text, uts46=True).decode()
    except idna.IDNAError as error:
        raise OddHost(f"{text[:80]!r} is no host name: {error}") from error


def _check_punycode(text: str, label: str) -> None:
    try:
        idna.ulabel(label)
    except idna.IDNAError as error:
        raise OddHost(f"{text[:80]!r} is no host name: {error}") from error


def _four(text: str, name: str) -> str:
    """Whatever ends in a number is meant as an IPv4 address by someone: only four plain numbers are one."""
    try:
        return str(IPv4Address(name))
    except AddressValueError as error:
        raise OddHost(f"{text[:80]!r} is an IPv4 address in an odd notation") from error


def _six(text: str) -> str:
    inner = text[1:].removesuffix("]")
    if "%" in inner or not text.endswith("]"):
        raise OddHost(f"{text[:80]!r} names an interface, or has no end")
    try:
        return str(IPv6Address(inner))
    except AddressValueError as error:
        raise OddHost(f"{text[:80]!r} is no IPv6 address") from error
