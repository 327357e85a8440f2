# SPDX-License-Identifier: BSD-3-Clause
"""How weft.Peer's connections are made: handshake, links, sockets."""
