"""Network interfaces of this machine: which one leads to another, and what a wrong name is answered with."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress

SETTING = "cluster.network_interface"
LOOPBACKS = ("lo", "lo0")
_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux: the IPv4 address of an interface."""


class NoSuchInterfaceError(ValueError):
    """An interface was asked for that this machine does not have, or none leads where it should."""


def find_interface(asked: str | None, peer: str) -> str:
    """The interface that `asked` names; None: the one through which this machine reaches `peer`."""
    present = [name for _, name in socket.if_nameindex()]
    if asked is not None:
        if asked not in present:
            raise NoSuchInterfaceError(
                f"{SETTING}: there is no interface {asked!r} here; there are {', '.join(present)}"
            )
        return asked
    if ipaddress.ip_address(peer).is_loopback:
        return next(name for name in present if name in LOOPBACKS)
    own = own_address_towards(peer)
    for name in present:
        if _address_of(name) == own:
            return name
    raise NoSuchInterfaceError(
        f"{SETTING}: no interface has {own}, from which {peer} is reached; name one of {', '.join(present)}"
    )


def own_address_towards(peer: str) -> str:
    """The address of this machine that `peer`, an address or name, sees it by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # nothing is sent: the kernel only looks up the route
        return str(probe.getsockname()[0])


def _address_of(interface: str) -> str:
    """Its IPv4 address; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        asked = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _GET_ADDRESS, asked)[20:24])
    return ""
