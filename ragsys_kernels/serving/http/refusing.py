"""Answers for the time in which no worker can give any: 503 with the reason, from the parent of the workers.

The listening sockets stay open when all workers have died; without this, callers would wait for one that cannot start.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress

import orjson

from ..limits import RefusedError
from ..listening import asking
from .messages import REQUEST_ID, id_of

_PATIENCE = 2.0  # seconds that a client has for its headers, and again for its body, which is not looked at
_STEP = 0.01
_HEADERS, _PART = 1 << 16, 1 << 20
_ID = re.compile(rb"\r\n%b:[ \t]*(.*?)[ \t]*\r\n" % REQUEST_ID, re.IGNORECASE)


class Refuser:
    """Answers every request to some listening sockets, until `stop`.

    Parameters
    ----------
    sockets : sequence of socket
        They stay open.
    """

    def __init__(self, sockets: Sequence[socket.socket], reason: str, tls: ssl.SSLContext | None = None) -> None:
        self.say(reason)
        self._tls = tls
        self._sockets = [each.dup() for each in sockets]
        self._last = False
        self._loop, self._ended = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="refuser")
        self._thread.start()

    def say(self, reason: str) -> None:
        """Give this reason from now on."""
        content = {"status": "failed", **RefusedError(503, f"serve: {reason}").body}
        body = orjson.dumps(content)
        self._answer = (
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
            b"connection: close\r\ncontent-length: %d\r\n%%b: %%b\r\n\r\n%b" % (len(body), body.replace(b"%", b"%%"))
        )

    def stop(self, last: bool = False) -> None:
        """Accept no more connections; those accepted get their answer. `last`: and those that wait to be accepted."""
        self._last = last
        self._loop.call_soon_threadsafe(self._ended.set)
        if last:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        tls = {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": _PATIENCE}
        servers = [
            await asyncio.start_server(self._refuse, sock=each, limit=_HEADERS, **tls)  # type: ignore[arg-type]
            for each in self._sockets
        ]
        await self._ended.wait()
        while self._last and asking(self._sockets):
            await asyncio.sleep(_STEP)
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())  # a server that is closed drops those that it has just accepted
        while under_way := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(under_way)
        for server in servers:
            server.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        given = None
        with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            given = _ID.search(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE))
        with suppress(OSError, asyncio.TimeoutError):
            writer.write(self._answer % (REQUEST_ID, id_of(given and given[1])))
            if writer.can_write_eof():  # not with TLS
                writer.write_eof()
            # A connection that is closed with bytes unread is reset, and the client may not see its answer.
            await asyncio.wait_for(_rest(reader), _PATIENCE)
        with suppress(OSError, asyncio.TimeoutError):
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), _PATIENCE)  # with TLS the client has a word in it
        writer.transport.abort()


async def _rest(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PART):
        pass
