# SPDX-License-Identifier: BSD-3-Clause
"""Connections before and beneath weft.Peer: handshake, links, sockets."""
