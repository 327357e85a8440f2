# SPDX-License-Identifier: BSD-3-Clause
"""``Listener`` with UCXX's interface."""

from __future__ import annotations

import logging

from weft.compat._core import listener

logger = logging.getLogger("ucx")


class Listener(listener.Listener):
    """A listening socket; made by ``create_listener``. It is closed when this object is deleted."""

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None and self.active_clients:
            logger.warning(
                "Listener object is being destroyed, but %d client handler(s) is(are) still alive. This usually "
                "indicates the Listener was prematurely destroyed.",
                self.active_clients,
            )
        super().__del__()

    @property
    def closed(self) -> bool:
        """Whether it has stopped."""
        return self.is_closed()
