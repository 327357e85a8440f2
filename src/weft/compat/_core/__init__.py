# SPDX-License-Identifier: BSD-3-Clause
"""The code that ucx-py's and UCXX's drop-ins share: connections over one low-level worker per process.

- ``process``: the functions that a program calls. ``context``: the single context behind them.
- ``endpoint``, ``listener``: the objects that they return. ``connection``: an endpoint's state.
- ``worker``: the process's only worker, and its wires to others. ``address``: workers' addresses.
- ``handshake``: how a connection is made. ``describe``: UCX's own texts. ``exceptions``, ``array``, ``printing``,
  ``network``: names that both libraries have.
"""
