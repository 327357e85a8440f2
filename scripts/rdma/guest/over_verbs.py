# SPDX-License-Identifier: BSD-3-Clause
"""A plugin for pytest: every context that a test makes has the transport of ``UCX_TLS``, whatever the test asks for."""

import os

import weft

DEVICE = "rxe0:1"


class OverVerbs(weft.Context):
    """A context over the RDMA device."""

    def __init__(self, settings=None, *, features=()):
        verbs = {"TLS": os.environ["UCX_TLS"], "NET_DEVICES": DEVICE}
        super().__init__((settings or {}) | verbs, features=features)


weft.Context = OverVerbs
