"""Ports of this machine for servers of tests."""

import contextlib
import random
import socket

# Below the ports that systems give to connections and to servers that ask for any (Linux from 32,768 on): such a one
# might be taken before it is used.
_FIRST, _LAST = 10_000, 30_000


def free_port():
    """A port on which nothing listens, nor will by chance."""
    chance = random.SystemRandom()  # other processes of tests must not have the same numbers
    while True:
        port = chance.randrange(_FIRST, _LAST)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
