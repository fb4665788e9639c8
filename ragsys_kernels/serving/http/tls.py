"""TLS of the server itself, whose certificate is read again when its files have changed."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ..._base.files import read

_MOST_BYTES = 1 << 20  # of a file


@dataclass
class Certificate:
    """A certificate chain and its key as they last stood in their files; another process gets these, not the files.

    Raises
    ------
    ValueError
        The files are none that belong together.
    """

    cert: str
    key: str | None = None  # None: the key is in the same file
    pems: tuple[bytes, bytes] = field(init=False, repr=False)  # chain and key

    def __post_init__(self) -> None:
        self.read_again()

    @property
    def files(self) -> dict[str, str]:
        """The arguments that name the files, and these."""
        return {"tls_cert": self.cert} if self.key is None else {"tls_cert": self.cert, "tls_key": self.key}

    def context(self) -> ssl.SSLContext:
        """Return a context with the certificate."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        _load(made, self.pems)
        return made

    def read_again(self, live: ssl.SSLContext | None = None) -> None:
        """Take what is in the files now, for new connections of a context too; the one before stays if that is wrong.

        It is tried in a context of its own: one of the files may have been replaced before the other.
        """
        try:
            pems = read(self.cert, _MOST_BYTES), read(self.key or self.cert, _MOST_BYTES)
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pems)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            rule = "be PEM files of a certificate chain and its key, without a password"
            raise ValueError(f"serve: tls_cert and tls_key must {rule}, got {error}") from None
        self.pems = pems
        if live is not None:
            _load(live, pems)


def _load(context: ssl.SSLContext, pems: tuple[bytes, bytes]) -> None:
    with ExitStack() as files:
        cert, key = (files.enter_context(_file(pem)) for pem in pems)
        context.load_cert_chain(cert, key, password=_ask_nobody)


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yield the path of a file with the content, which `ssl` takes from files alone: in memory where there are such."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("pem"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(buffering=0) as file:
            file.write(content)
            yield file.name


def _ask_nobody() -> str:
    raise ValueError("a key with a password")
