# SPDX-License-Identifier: BSD-3-Clause
"""What ucx-py's and UCXX's drop-ins share: connections over one low-level worker for the process.

- ``process``: the functions that a program calls. ``context``: the one context that they use.
- ``endpoint``, ``listener``: what they make. ``connection``: what an endpoint has of its own.
- ``worker``: the process's one worker and its wires to others. ``address``: workers' addresses.
- ``handshake``: how a connection is made. ``describe``: UCX's own texts. ``exceptions``, ``array``, ``printing``,
  ``network``: names that both libraries have.
"""
