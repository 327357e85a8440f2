# SPDX-License-Identifier: BSD-3-Clause
"""Signatures of native methods as their users write them: without ``self``, with types, and numbers as they stand.

Methods of CPython's own kind, with the quicker door, have text that can carry no types: theirs are those of the stub.
"""

import ast
import re
from pathlib import Path

import weft

_STUB = (Path(weft.__file__).parent / "_native.pyi").read_text()
METHODS = {
    f"{node.name}.{method.name}": ast.get_source_segment(_STUB, method).partition("\n")[0].rstrip(": .")
    for node in ast.parse(_STUB).body
    if isinstance(node, ast.ClassDef)
    for method in node.body
    if isinstance(method, ast.FunctionDef)
}


def signature(app, what, name, thing, options, arguments, returns):
    """Answer autodoc, which asks for methods such as ``weft.Endpoint.tag_send``."""
    owner = getattr(thing, "__objclass__", None)
    if what == "method" and hasattr(thing, "__nb_signature__"):
        text = thing.__nb_signature__[0][0]
    elif what == "method" and owner is not None and owner.__module__ == "weft._native":
        text = METHODS[f"{owner.__name__}.{thing.__name__}"]
    else:
        return None
    found = re.fullmatch(r"def \w+\(self(?:, )?(.*)\) -> (.*)", text)
    return f"({found[1]})", found[2]


def setup(app):
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True}
