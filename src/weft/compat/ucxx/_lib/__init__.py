# SPDX-License-Identifier: BSD-3-Clause
"""What programs take from UCXX's core package beside the public names."""
