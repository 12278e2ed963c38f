"""Network interfaces by name and by where they lead."""

from __future__ import annotations

import re
import socket

import pytest

from ludus.system.network import LOOPBACKS, NoSuchInterfaceError, address_of, find_interface


def test_loopback_leads_to_this_machine() -> None:
    name = find_interface(None, "127.0.0.1")
    assert name in [name for _, name in socket.if_nameindex()]
    assert name.startswith("lo")


def test_an_interface_by_name() -> None:
    present = [name for _, name in socket.if_nameindex()]
    for name in present:
        assert find_interface(name, "127.0.0.1") == name


def test_an_unknown_name_lists_those_present() -> None:
    present = ", ".join(name for _, name in socket.if_nameindex())
    message = f"cluster.network_interface: there is no interface 'eth99' here; there are {present}"
    with pytest.raises(NoSuchInterfaceError, match=re.escape(message)):
        find_interface("eth99", "127.0.0.1")


def test_the_one_that_leads_to_another_machine() -> None:
    for name in (name for _, name in socket.if_nameindex() if name not in LOOPBACKS):
        own = address_of(name)
        if own:
            assert find_interface(None, _beside(own)) == name
            break
    else:
        pytest.skip("this machine has no network but loopback")


def _beside(address: str) -> str:
    *network, host = address.split(".")
    return ".".join([*network, str(int(host) ^ 1)])
