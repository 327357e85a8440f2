# SPDX-License-Identifier: BSD-3-Clause
"""Names that programs import from UCXX's core package."""
