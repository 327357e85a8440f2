# SPDX-License-Identifier: BSD-3-Clause
"""Views of the traffic between workers."""
