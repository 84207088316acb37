"""Which addresses a box may be led to, judged after its name was resolved.

Guarantees: of IPv4, what is not in the special-purpose registry; of IPv6, global unicast without what carries
an IPv4 address inside; never a cloud's metadata service, never this machine, whatever a rule says, unless a
caller opens a range by name, and a metadata service not even then.
Source: the IANA special-purpose address registries (RFC 6890 and its updates, seen in November 2026)."""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Range = IPv4Network | IPv6Network

_SPECIAL_FOUR = tuple(
    (IPv4Network(text), what)
    for text, what in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by carriers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarks"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved or broadcast"),
    )
)
_GLOBAL_SIX = IPv6Network("2000::/3")
_SPECIAL_SIX = tuple(
    (IPv6Network(text), what)
    for text, what in (
        ("2001::/23", "protocol assignments, Teredo among them"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4: an IPv4 address inside"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "documentation"),
    )
)
_LOOPBACK_SIX = IPv6Address("::1")
_EMBEDDED = tuple(IPv6Network(text) for text in ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"))
_METADATA = frozenset(
    {
        IPv4Address("169.254.169.254"),  # AWS, GCP, Azure, OpenStack and others
        IPv4Address("169.254.170.2"),  # credentials of AWS containers
        IPv4Address("169.254.170.23"),
        IPv4Address("168.63.129.16"),  # Azure's host, a public address
        IPv4Address("100.100.100.200"),  # Alibaba
        IPv4Address("192.0.0.192"),  # Oracle
        IPv6Address("fd00:ec2::254"),  # AWS
        IPv6Address("fd00:ec2::23"),
        IPv6Address("fd20:ce::254"),  # GCP
    }
)


def why_refused(address: Address, opened: Sequence[Range] = ()) -> str:
    """Why no box may be led there; empty when it may. `opened`: special ranges that the caller allows."""
    if address in _METADATA:
        return "a cloud's metadata service"
    if address != _LOOPBACK_SIX and any(address in embedded for embedded in _EMBEDDED):
        return "an IPv4 address inside an IPv6 one"
    if any(address in each for each in opened):
        return ""
    special = _special(address)
    if special:
        return special
    return "an address of this machine" if _is_this_machine(address) else ""


def _special(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return next((what for found, what in _SPECIAL_FOUR if address in found), "")
    if address not in _GLOBAL_SIX:
        return "no global unicast address"
    return next((what for found, what in _SPECIAL_SIX if address in found), "")


def _is_this_machine(address: Address) -> bool:
    """The kernel's own answer: what is sent to an address of this machine comes from that address."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # a datagram socket: nothing is sent
            return probe.getsockname()[0] == str(address)
        except OSError:
            return False  # no route: the connection will say so
