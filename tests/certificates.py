# SPDX-License-Identifier: BSD-3-Clause
"""An authority of the tests' own, and what the two sides of a connection show of it."""

from __future__ import annotations

import functools
import ssl
from typing import Any

import trustme


class Authority:
    """Signs a certificate for `hosts`; both sides ask for one that it signed."""

    def __init__(self, *hosts: str) -> None:
        self.ca = trustme.CA()
        self.certificate = self.ca.issue_cert(*hosts)

    def connector(self, *, shows: bool = True) -> ssl.SSLContext:
        """Make a connector's context; one that `shows` nothing has no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        if shows:
            self.certificate.configure_cert(context)
        return context

    def listener(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        self.ca.configure_trust(context)
        self.certificate.configure_cert(context)
        return context


@functools.cache
def authority() -> Authority:
    """The one that all tests of a process trust: making it takes a while."""
    return Authority("127.0.0.1")


@functools.cache
def stranger() -> Authority:
    """One that nobody else trusts."""
    return Authority("127.0.0.1")


def security(whose: Authority | None = None, **options: Any) -> Any:
    """Make distributed's ``Security`` of an authority, the same certificate for all."""
    from distributed import Security

    signed = whose or authority()
    certificate = signed.certificate
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems).decode()
    key = certificate.private_key_pem.bytes().decode()
    shown = {
        f"tls_{role}_{what}": text
        for role in ("client", "scheduler", "worker")
        for what, text in (("cert", chain), ("key", key))
    }
    return Security(tls_ca_file=signed.ca.cert_pem.bytes().decode(), **shown, **options)
