# SPDX-License-Identifier: BSD-3-Clause
"""The docs site, by Sphinx: ``nox -s docs`` builds it into build/docs. A forge shows the pages' Markdown as well.

What reads weft itself, for the reference and for tables that must not go stale, is in _extensions.
"""

import sys
from pathlib import Path

import weft

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "weft"
author = "the weft authors"
project_copyright = "the weft authors"
release = version = weft.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton", "sphinx_design"]
extensions += ["native_signatures", "notes_after_sections", "tables_of_weft"]
exclude_patterns = ["_extensions", "benchmarks/long"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
smartquotes = False  # options and code in the tables made from errors and findings must stay as they are

autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
numpydoc_show_class_members = False

copybutton_prompt_text = r"^\$ |^node\d\$ |^>>> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

html_theme = "pydata_sphinx_theme"
html_title = "weft"
html_static_path = ["_static"]
html_css_files = ["weft.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "weft"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"index": [], "start": [], "troubleshooting": [], "coming_from": []}
