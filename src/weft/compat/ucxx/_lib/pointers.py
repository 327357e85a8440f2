# SPDX-License-Identifier: BSD-3-Clause
"""The error for access to C++ objects."""

from weft.compat._core.exceptions import UCXUnsupportedError


def no_pointer(name: str) -> UCXUnsupportedError:
    """Return the error for a request of a C++ object's address."""
    return UCXUnsupportedError(
        f"weft has no ucxx::{name}: this ucxx is Python over weft, and programs that pass C++ objects "
        "(raft, rapidsmpf, libucxx) need UCXX itself; get_ucp_worker() and ucp_endpoint give UCX's own handles"
    )
