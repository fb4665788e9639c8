"""The listening socket: how it is bound, opened, and closed so that nobody is cut off; and how many connect."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import select
import socket
import struct
import sys
from collections.abc import Iterable, Iterator

from .limits import SPARE

_logger = logging.getLogger("ragsys_kernels.serving")

# Linux's number, which Python does not name; and a filter of TCP segments that keeps all but those that ask to connect
# (of the flags SYN and ACK only the first): load the flags, mask them, compare, drop or keep.
_SO_ATTACH_FILTER = 26
_FILTER = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))

# Files that a server opens now and then, such as those of its metrics and libraries.
_OTHER_FILES = 16


def bound(host: str, port: int) -> socket.socket:
    """Return a socket at an address that is free, which workers share; `listen` opens it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setblocking(False)
    try:
        with _free(host, port):
            made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def listen(sockets: Iterable[socket.socket], host: str, scheme: str) -> None:
    """Let clients connect, once all that was given has been loaded, and say so."""
    for each in sockets:
        port = each.getsockname()[1]
        with _free(host, port):
            each.listen(2048)
        print(f"serve: listening on {scheme}://{host}:{port}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _free(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(f"serve: port must be free on {host}, got {port}: {error.strerror}") from error


def let_nobody_in(sockets: Iterable[socket.socket]) -> None:
    """Ignore those that ask to connect from now on, in all processes; who has asked before can still be accepted.

    Those ignored ask again a second later, and are then refused, or answered by the next server. Without this, which
    only Linux can do, the kernel would reset those that come between the last call of ``accept`` and the end.
    """
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _FILTER))
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(code))
    for each in sockets:
        with contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def asking(sockets: Iterable[socket.socket]) -> bool:
    """Return whether a client has connected that nobody has accepted yet."""
    look = select.poll()
    for each in sockets:
        look.register(each, select.POLLIN)
    return bool(look.poll(0))


def room(connections: int) -> int:
    """Return how many connections can be open at the same time, at most so many; say so if these are fewer.

    The soft limit of open files is raised as needed. As many files as are open now are left for a reload, which opens
    all corpora again beside those in service.
    """
    others = 2 * len(os.listdir("/dev/fd")) + _OTHER_FILES + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < connections + others:
        wanted = connections + others
        with contextlib.suppress(OSError, ValueError):  # of a system with a limit of its own
            wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    found = connections if soft == resource.RLIM_INFINITY else min(connections, soft - others)
    if found < 1:
        raise OSError(f"serve: open files must be at least {others + 1} (ulimit -n), got {soft}")
    if found < connections:
        more = f"for {connections}, open files must be {connections + others} (ulimit -n), got {soft}"
        _logger.warning("serve: %d connections are the most that can be open; %s", found, more)
    return found
