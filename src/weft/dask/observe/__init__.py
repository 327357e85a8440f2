# SPDX-License-Identifier: BSD-3-Clause
"""What is seen of the traffic between workers."""
