# SPDX-License-Identifier: BSD-3-Clause
"""What a docstring says after its last section, such as its source, is a note, and no further exception raised."""

import re


def notes(app, what, name, thing, options, lines):
    """Put a heading before the first paragraph that follows a section's items; numpydoc would take it for an item."""
    in_section = False
    for i, line in enumerate(lines):
        following = lines[i + 1] if i + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", following):
            in_section = True
        elif in_section and line.strip() and not lines[i - 1].strip() and not (line[0] == " " or following[:1] == " "):
            lines[i:i] = ["Notes", "-----"]
            return


def setup(app):
    app.connect("autodoc-process-docstring", notes, priority=100)  # before numpydoc
    return {"parallel_read_safe": True}
