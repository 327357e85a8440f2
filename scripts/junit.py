# SPDX-License-Identifier: BSD-3-Clause
"""Reads the records that pytest writes with ``--junitxml``."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path


def cases(record: Path) -> Iterator[tuple[ET.Element, str, str]]:
    """Give each test's entry; passed, failed, skipped, or expected to fail; and the beginning of why.

    A test that passed, and whose fixture failed afterwards, has two entries.
    """
    for case in ET.parse(record).iter("testcase"):  # noqa: S314  (pytest wrote it)
        results = {result.tag: result for result in case}
        bad = results.get("failure", results.get("error"))
        skipped = results.get("skipped")
        if bad is not None:
            yield case, "failed", _words(bad)
        elif skipped is not None:
            expected = skipped.get("type") == "pytest.xfail"
            yield case, "expected to fail" if expected else "skipped", _words(skipped)
        else:
            yield case, "passed", ""


def _words(result: ET.Element) -> str:
    message = result.get("message", "")
    if message == "collection skipped" and (found := re.search(r"Skipped: (.*?)\W*$", result.text or "")):
        message = found[1]
    return re.sub(r"\s+", " ", message).strip()[:160]
