"""From a host that a rule allows to a connection.

Guarantees: the address that was judged is the address that is connected to: a name is looked up once, and
what is handed to the kernel is a number."""

import asyncio
import socket
from ipaddress import ip_address

from .address import Address, why_refused
from .host import address_of
from .policy import Network
from .record import Account, Reason, failed, refused
from .resolver import Resolver

_MOST_ADDRESSES = 8


async def dial(account: Account, network: Network, resolver: Resolver) -> socket.socket:
    """A connected socket to `account.host`. Raises Fault."""
    error: OSError | None = None
    for address in await _judged(account, network, resolver):
        account.address = str(address)
        try:
            async with asyncio.timeout(network.connect_seconds):
                return await _connect(address, account.port)
        except TimeoutError:
            error = TimeoutError(f"no answer within {network.connect_seconds} s")
        except OSError as fault:
            error = fault
    raise failed(Reason.unreachable, f"{account.host}:{account.port} at {account.address}: {error}")


async def _judged(account: Account, network: Network, resolver: Resolver) -> list[Address]:
    """The addresses that may be tried, at least one. Raises Fault."""
    literal = address_of(account.host)
    found = [literal] if literal else await _look_up(account.host, network, resolver)
    why = {address: why_refused(address, network.opened) for address in found}
    fit = [address for address in found if not why[address]]
    if not fit:
        account.address = str(found[0])
        raise refused(Reason.address, f"{account.host} leads to {found[0]}: {why[found[0]]}")
    return fit


async def _look_up(host: str, network: Network, resolver: Resolver) -> list[Address]:
    try:
        async with asyncio.timeout(network.connect_seconds):
            texts = await resolver.resolve(host)
        found = [ip_address(text) for text in texts[:_MOST_ADDRESSES]]
    except TimeoutError as error:
        raise failed(Reason.unknown_name, f"{host}: no answer within {network.connect_seconds} s") from error
    except (OSError, ValueError) as error:
        raise failed(Reason.unknown_name, f"{host}: {error}") from error
    if not found:
        raise failed(Reason.unknown_name, f"{host} has no address")
    return found


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (str(address), port))
    except BaseException:
        made.close()
        raise
    return made
