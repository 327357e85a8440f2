# SPDX-License-Identifier: BSD-3-Clause
"""A service on uvloop with TLS: clients show a certificate, and messages that leave the host are encrypted.

The certificates are made here, for this run; in production, load your own with ``SSLContext.load_cert_chain``.
"""

# needs: pip install weft-ucx numpy uvloop trustme
import asyncio
import ssl

import numpy as np
import trustme
import uvloop

import weft


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the service's context and a client's, with certificates of one authority."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    service, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    service.verify_mode = ssl.CERT_REQUIRED
    for context in (service, client):
        authority.configure_trust(context)
        certificate.configure_cert(context)
    return service, client


async def normalise(peer: weft.Peer) -> None:
    """Answer each array by itself, with mean 0; end when the client closes."""
    try:
        while True:
            array = np.frombuffer(await peer.recv())
            await peer.send(array - array.mean())
    except weft.PeerClosedError:
        return


async def main() -> None:
    service, client = contexts()
    async with weft.listen("127.0.0.1:0", normalise, ssl=service, payload="tls") as listener:

        async def call(n: int) -> float:
            async with weft.connect(listener.address, ssl=client, payload="tls") as peer:
                await peer.send(np.arange(float(n)))
                return abs(float(np.frombuffer(await peer.recv()).mean()))

        means = await asyncio.gather(*(call(n) for n in (10, 1_000, 100_000)))
        try:
            await weft.connect(listener.address)
        except weft.TlsError as error:
            print("without TLS:", error)
    print(f"{len(means)} clients served, largest mean {max(means):.1g}")


if __name__ == "__main__":
    uvloop.run(main())
