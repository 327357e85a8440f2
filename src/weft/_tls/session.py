# SPDX-License-Identifier: BSD-3-Clause
"""TLS between a handshake's steps and the socket: encrypts the bytes that the steps send. No sockets here.

The two ``ssl.SSLContext`` decide about certificates and versions.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator
from typing import Any

from weft._connect.handshake import Joined, Step, Steps, UpTo, reject, tls_required
from weft._connect.message import MAGIC
from weft.errors import CertificateError, HandshakeError, InvalidParamError, TlsError

#: More than one record (16 KiB), and about as much as a socket's buffer holds.
_READ_NBYTES = 1 << 16
_RECORDS = (0x15, 0x16)  # the first byte of the other side's first record: an alert, or a handshake


class Session:
    """One side of a TLS session, without a socket.

    Attributes
    ----------
    tls : ssl.SSLObject
        Reads from `incoming` and writes to `outgoing`.
    """

    def __init__(self, context: ssl.SSLContext, what: str, *, host: str | None = None) -> None:
        """Start a session. `host` is the name that a connector connects to; a listener has none."""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._what = what
        self._listens = host is None
        try:
            self.tls = context.wrap_bio(
                self.incoming, self.outgoing, server_side=self._listens, server_hostname=host or None
            )
        except (ssl.SSLError, ValueError) as e:
            side = "a listener" if self._listens else "a connector"
            raise InvalidParamError(f"{what}: this SSLContext does not suit {side}: {e}") from None

    def carry(self, inner: Steps) -> Steps:
        """Run the steps of `inner` over TLS: first the TLS handshake, then each step."""
        yield from self._shake_hands()
        answer: Any = None
        failure: BaseException | None = None
        while True:
            try:
                step = inner.throw(failure) if failure is not None else inner.send(answer)
            except StopIteration as stop:
                joined: Joined = stop.value
                joined.session = self
                return joined
            answer = failure = None
            try:
                if isinstance(step, bytes):
                    yield from self._write(step)
                elif isinstance(step, UpTo):
                    answer = yield from self._read(step.nbytes)
                elif isinstance(step, int):
                    answer = yield from self._read_exactly(step)
                else:
                    answer = yield step
            except BaseException as e:  # noqa: BLE001 - the inner steps decide, as they do without TLS
                failure = e

    def _shake_hands(self) -> Generator[Step, Any, None]:
        first = True
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                yield from self._flush()
            except ssl.SSLError as e:
                yield from self._refuse(e)
            data = yield from self._feed()
            if first and data[0] not in _RECORDS:
                if self._listens and data.startswith(MAGIC[: len(data)]):
                    yield from reject(tls_required())
                raise TlsError(f"{self._what}: the other side does not speak TLS; it began with {bytes(data[:10])!r}")
            first = False
        yield from self._flush()

    def _write(self, data: bytes) -> Generator[Step, Any, None]:
        left = memoryview(data)
        try:
            while left:
                left = left[self.tls.write(left) :]
        except ssl.SSLError as e:
            yield from self._refuse(e)
        yield from self._flush()

    def _read_exactly(self, nbytes: int) -> Generator[Step, Any, bytearray]:
        data = bytearray()
        while len(data) < nbytes:
            more = yield from self._read(nbytes - len(data))
            if not more:
                raise self._cut()
            data += more
        return data

    def _read(self, nbytes: int) -> Generator[Step, Any, bytes]:
        while True:
            try:
                return self.tls.read(nbytes)
            except ssl.SSLWantReadError:
                yield from self._flush()
                yield from self._feed()
            except ssl.SSLError as e:
                yield from self._refuse(e)

    def _feed(self) -> Generator[Step, Any, bytes]:
        data: bytes = yield UpTo(_READ_NBYTES)
        if not data:
            raise self._cut()
        self.incoming.write(data)
        return data

    def _flush(self) -> Generator[Step, Any, None]:
        if data := self.outgoing.read():
            yield data

    def _refuse(self, error: ssl.SSLError) -> Generator[Step, Any, None]:
        """Send this side's alert, and raise."""
        if alert := self.outgoing.read():
            if self._listens:  # the caller has already sent data: closing now would reset the socket and drop the alert
                yield from reject(alert)
            else:
                yield alert
        raise named(error, self._what) from None

    def _cut(self) -> HandshakeError:
        return HandshakeError(
            f"{self._what}: the other side closed the socket in the middle of the TLS handshake; is it weft?"
        )


def named(error: ssl.SSLError, what: str) -> TlsError:
    """Return weft's exception for OpenSSL's."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateError(
            f"{what}: this side refuses the other's certificate: {error.verify_message}; does this side's SSLContext"
            " trust the authority that signed it, and is it made out to this host?"
        )
    if "DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return CertificateError(f"{what}: the other side presented no certificate, and this side requires one")
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return CertificateError(
            f"{what}: the other side refuses this one's certificate, or wants one and got none ({reason});"
            " does it trust the authority that signed it?"
        )
    if "ALERT_PROTOCOL_VERSION" in reason:
        return TlsError(
            f"{what}: the other side does not speak TLS, or not this version of it ({reason}); was it given `ssl`?"
        )
    return TlsError(f"{what}: TLS negotiation failed: {reason}")
