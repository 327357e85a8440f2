# SPDX-License-Identifier: BSD-3-Clause
"""UCXX's names of tags."""

from weft.compat.ucxx._lib.tag import UCXXTag, UCXXTagMask, UCXXTagMaskFull

Tag = UCXXTag
TagMask = UCXXTagMask
TagMaskFull = UCXXTagMaskFull

__all__ = ["Tag", "TagMask", "TagMaskFull", "UCXXTag", "UCXXTagMask", "UCXXTagMaskFull"]
