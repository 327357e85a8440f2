# SPDX-License-Identifier: BSD-3-Clause
"""What programs take from ucx-py's core package beside the public names; ``ucx_api`` itself is not here."""
