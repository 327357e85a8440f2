# SPDX-License-Identifier: BSD-3-Clause
"""The refusal of what only C++ has."""

from weft.compat._core.exceptions import UCXUnsupportedError


def no_pointer(name: str) -> UCXUnsupportedError:
    """Return the refusal of an address of a C++ object."""
    return UCXUnsupportedError(
        f"weft has no ucxx::{name}: this ucxx is Python over weft, and programs that pass C++ objects "
        "(raft, rapidsmpf, libucxx) need UCXX itself; get_ucp_worker() and ucp_endpoint give UCX's own handles"
    )
