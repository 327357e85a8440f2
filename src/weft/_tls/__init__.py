# SPDX-License-Identifier: BSD-3-Clause
"""TLS for the handshake, and for messages over its socket."""
