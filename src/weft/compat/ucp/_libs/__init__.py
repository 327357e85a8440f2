# SPDX-License-Identifier: BSD-3-Clause
"""Names that programs import from ucx-py's core package; ``ucx_api`` itself is not provided."""
