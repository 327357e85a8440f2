# SPDX-License-Identifier: BSD-3-Clause
"""Why something failed, for commands whose own attempt says less. Connections do not use this."""

from __future__ import annotations

import os
import socket

#: Seconds for the connection that finds out.
_PROBE_S = 2.0


def why_unreachable(host: str, port: int) -> str:
    """Connect a plain TCP socket and return why that fails; empty if it does not."""
    try:
        socket.create_connection((host, port), _PROBE_S).close()
    except TimeoutError:
        return "nothing answers there"
    except socket.gaierror as e:
        return f"no such host: {e.strerror}"
    except OSError as e:
        return os.strerror(e.errno).lower() if e.errno else str(e)
    except UnicodeError as e:
        return f"no such host: {e}"
    return ""


def first_cause(error: BaseException) -> BaseException:
    """Return the error that led to `error`.

    distributed closes a nanny whose process did not start, which fails an assertion: the error before that counts.
    """
    while before := error.__cause__ or (error.__context__ if isinstance(error, AssertionError) else None):
        error = before
    return error
