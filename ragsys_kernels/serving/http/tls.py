"""TLS of the server itself, whose certificate is read again when its files have changed."""

from __future__ import annotations

import ssl


def context(cert: str, key: str | None) -> ssl.SSLContext:
    """Return a context with a certificate.

    Raises
    ------
    ValueError
        The files are none that belong together.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(cert, key, password=_ask_nobody)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        rule = "be PEM files of a certificate chain and its key, without a password"
        raise ValueError(f"serve: tls_cert and tls_key must {rule}, got {error}") from None
    return made


def _ask_nobody() -> str:
    raise ValueError("a key with a password")


def renew(live: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Give new connections of a context the certificate that is in the files; refused as by `context`.

    The files are tried in a context of their own first: one of them may have been replaced before the other.
    """
    context(cert, key)
    live.load_cert_chain(cert, key, password=_ask_nobody)
