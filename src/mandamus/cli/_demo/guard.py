"""No socket leaves this machine: a hook of the interpreter that refuses every address but loopback, for the whole process.

The rule a newcomer would break: it is installed before anything else is imported, and there is no way to take it off again.
"""

from __future__ import annotations

import errno
import ipaddress
import sys
from typing import Any

_ADDRESSED = ("socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg")
_NAMED = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")


class Refused(PermissionError):
    """An address that is not of this machine."""


def install(*, nothing: bool = False) -> None:
    """From now on only loopback, or with `nothing` no address at all."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _ADDRESSED:
            _check(args[1], nothing)
        elif event in _NAMED:
            _check(args[0], nothing)

    sys.addaudithook(hook)


def _check(address: Any, nothing: bool) -> None:
    """A path is a socket of this machine; None is an already connected socket, which was checked when it was."""
    if address is None or (isinstance(address, str | bytes) and address[:1] in ("/", b"/", "\0", b"\0")):
        return
    host = address[0] if isinstance(address, tuple) else address
    if nothing or not loopback(host):
        raise Refused(errno.EACCES, f"the demo stays on this machine: no socket to {host!a}")


def loopback(host: Any) -> bool:
    """A literal address of this machine, or its name. An empty host means every interface, and is not."""
    try:
        return str(host) == "localhost" or ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
