# SPDX-License-Identifier: BSD-3-Clause
"""TLS: around the handshake, and messages over its socket."""
