# SPDX-License-Identifier: BSD-3-Clause
"""Two ends of a connection whose messages go over its TLS socket, in one loop."""

from tests.test_tls_channel import tls_ends as tls_pair

__all__ = ["tls_pair"]
