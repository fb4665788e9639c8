"""Which hosts a server answers as: no page of another site may call it from a visitor's browser.

A browser sends, of its own accord, what page a request comes from (``Origin``) and the name that it looked up
(``Host``). A foreign page is seen by the first; by the second, one whose name has been made to lead here, which looks
like a page of this server (DNS rebinding). Clients that are no browsers have no reason to lie.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping, Sequence

from ..limits import RefusedError

_LOCAL = "localhost"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


class Hosts:
    """The check of ``Host`` and ``Origin``.

    Parameters
    ----------
    bound : str, optional
        The address that the server listens on. It, addresses of this machine where it is one of them, and any address
        where it is 0.0.0.0 or ::, are taken. None: any host is.
    allowed : sequence of str
        Further names or addresses, without a port; ``*``: any.
    origins : sequence of str
        Of other pages that may call and read the answers, as ``https://search.example``; ``*``: any.
    """

    def __init__(self, bound: str | None = None, allowed: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        for each in allowed:
            if each != "*" and (not each or _without_port(each) != each.lower()):
                raise ValueError(f"serve: allowed_hosts must be names or addresses without a port, got {each!r}")
        for each in origins:
            if each != "*" and not _ORIGIN.fullmatch(each.lower()):
                raise ValueError(f"serve: allowed_origins must be SCHEME://HOST[:PORT], got {each!r}")
        self.origins = tuple(each.lower() for each in origins)
        self._bound, self._allowed = bound, frozenset(each.lower() for each in allowed)
        self.takes = functools.lru_cache(256)(self._takes)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request for another host, or from a page of another."""
        host = headers.get(b"host")
        if host is not None and not self.takes(host):
            rule = "be the address that this server listens on, localhost or one of --allowed-hosts"
            raise RefusedError(421, f"serve: host must {rule}, got {_shown(host)}", "host")
        origin = headers.get(b"origin")
        if origin is not None and not self._takes_page(origin):
            page = origin.partition(b"://")[2]
            if page != host and _without_port(_text(page)) not in self._allowed:
                rule = "be this server's, of one of --allowed-hosts or one of --allowed-origins"
                raise RefusedError(403, f"serve: origin must {rule}, got {_shown(origin)}", "origin")

    def _takes_page(self, origin: bytes) -> bool:
        return "*" in self.origins or _text(origin) in self.origins

    def _takes(self, host: bytes) -> bool:
        name = _without_port(_text(host))
        if self._bound is None or "*" in self._allowed or name in self._allowed or name in (self._bound, _LOCAL):
            return True
        given, bound = _address(name), _address(self._bound)
        if given is None:
            return False
        if bound is None:
            return self._bound == _LOCAL and given.is_loopback
        return bound.is_unspecified or given == bound or (bound.is_loopback and given.is_loopback)


def _text(header: bytes) -> str:
    return header.decode("latin-1").lower()


def _without_port(host: str) -> str:
    """Return the name or address of a ``Host`` header."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _shown(header: bytes) -> str:
    return repr(header[:100].decode("latin-1"))
