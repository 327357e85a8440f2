# SPDX-License-Identifier: BSD-3-Clause
"""Directives that read weft itself: its errors, the doctor's findings, the help of each command."""

import ast
import contextlib
import inspect
import io
import os
import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import weft
from weft import _cli, errors
from weft.doctor import checks


def _cell(text):
    return " ".join(text.replace("|", "\\|").split())


def _table(headings, rows):
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


class Errors(SphinxDirective):
    """Each exception: what it means, and Python's own class that catches it too."""

    def run(self):
        rows = []
        for name in weft.__all__:
            thing = getattr(weft, name)
            if inspect.isclass(thing) and issubclass(thing, errors.Error):
                builtin = [
                    c.__name__ for c in thing.__mro__ if c.__module__ == "builtins" and c not in Exception.__mro__
                ]
                meaning = inspect.getdoc(thing).partition("\n")[0]
                rows.append((f"{{py:class}}`~weft.{name}`", meaning, ", ".join(f"`{n}`" for n in builtin[:1])))
        return self.parse_text_to_nodes(_table(("raised", "what it means", "caught by"), rows))


def _strings(tree):
    """The texts that each name is given in `tree`, as nodes."""
    given = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
    return given


def _text(node, names, depth=0):
    """The text of an expression; ``...`` for what is only known when it runs, ``/`` between what it may be."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names, depth) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, names, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names, depth) + _text(node.right, names, depth)
    if isinstance(node, ast.IfExp):
        return _either([node.body, node.orelse], names, depth)
    if isinstance(node, ast.Name) and depth < 4:
        others = {name: given for name, given in names.items() if name != node.id}
        return _either(names.get(node.id, []), others, depth + 1)
    return "..."


def _either(nodes_, names, depth):
    texts = dict.fromkeys(_text(node, names, depth) for node in nodes_)
    known = [text for text in texts if text.strip("., ")]
    return " / ".join(known) if known else "..."


def findings(check):
    """Give (level, what, remedy) of each finding that a check's code can make, in its own module."""
    module = ast.parse(inspect.getsource(inspect.getmodule(check)))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    constants = _strings(ast.Module([node for node in module.body if isinstance(node, ast.Assign)], []))
    left, seen = [check.__name__], set()
    while left:
        name = left.pop(0)
        seen.add(name)
        names = constants | _strings(functions[name])
        for node in ast.walk(functions[name]):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called in ("note", "warning", "error") and node.args:
                remedy = next((_text(k.value, names) for k in node.keywords if k.arg == "remedy"), "")
                yield called, _text(node.args[0], names), remedy
            elif called in functions and called not in seen | {*left}:
                left.append(called)


class Findings(SphinxDirective):
    """What `weft doctor` may say, and what to do; sorted as it prints them."""

    def run(self):
        rows = []
        for name, check in checks.CHECKS.items():
            for level, what, remedy in findings(check):
                if remedy:
                    rows.append((name, level, _plain(what), _plain(remedy)))
        return self.parse_text_to_nodes(_table(("check", "level", "what you see", "what to do"), rows))


def _plain(text):
    """Keep Markdown from reading marks in what the doctor says; an ellipsis for what is filled in."""
    text = re.sub(r"(\.\.\.)+\.*", "\N{HORIZONTAL ELLIPSIS}", text)
    for mark in "\\`*_<>[]{}$":
        text = text.replace(mark, f"\\{mark}")
    return text


class Command(SphinxDirective):
    """The help of a command, as the command prints it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        os.environ |= {"COLUMNS": "74", "NO_COLOR": "1", "PYTHON_COLORS": "0"}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            _cli.main([*self.arguments[0].split()[1:], "--help"])
        text = printed.getvalue()
        return [nodes.literal_block(text, text, language="text")]


def setup(app):
    app.add_directive("weft-errors", Errors)
    app.add_directive("weft-findings", Findings)
    app.add_directive("weft-command", Command)
    return {"parallel_read_safe": True}
