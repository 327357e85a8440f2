# SPDX-License-Identifier: BSD-3-Clause
"""Makes ``inspect.signature`` work for native functions and methods, from nanobind's own descriptions.

nanobind keeps a function's signature as text for stubs, where ``inspect`` does not look. Python wrappers would slow
down every call. Instead, the types of nanobind's functions get the attribute that ``inspect`` reads. These types are
private to this module (``NB_DOMAIN`` in CMakeLists.txt) and immutable from Python, so the attribute is put into the
type's dictionary directly. Nothing is parsed until it is needed. The methods with a fast path (fast_method.hpp) are
CPython's own method descriptors, which already have a signature.
"""

from __future__ import annotations

import ast
import gc
from typing import TYPE_CHECKING, Any

from weft import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Parameter, Signature


def parse(text: str, defaults: tuple[Any, ...] | None) -> Signature:
    """Parse ``def f(...) -> ...`` into a signature; annotations stay text, as with postponed evaluation.

    `defaults` are the values for the marks ``\\0``, ``\\1``, ... that nanobind writes where a value is not a literal.
    """
    from inspect import Parameter, Signature

    named = text.replace("def (", "def getter(", 1)  # a property's signature has no name
    function = ast.parse(named.replace("\\", "_default_") + ": ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args

    def value_of(node: ast.expr | None) -> Any:
        if node is None:
            return Parameter.empty
        if isinstance(node, ast.Name) and node.id.startswith("_default_"):
            return (defaults or ())[int(node.id.removeprefix("_default_"))]
        return ast.literal_eval(node)

    def parameter(argument: ast.arg | None, kind: Any, default: ast.expr | None = None) -> list[Parameter]:
        if argument is None:
            return []
        annotation = ast.unparse(argument.annotation) if argument.annotation else Parameter.empty
        return [Parameter(argument.arg, kind, default=value_of(default), annotation=annotation)]

    positional = [*arguments.posonlyargs, *arguments.args]
    padded = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    parameters: list[Parameter] = []
    for number, (argument, default) in enumerate(zip(positional, padded, strict=True)):
        only = number < len(arguments.posonlyargs)
        kind = Parameter.POSITIONAL_ONLY if only else Parameter.POSITIONAL_OR_KEYWORD
        parameters += parameter(argument, kind, default)
    parameters += parameter(arguments.vararg, Parameter.VAR_POSITIONAL)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters += parameter(argument, Parameter.KEYWORD_ONLY, default)
    parameters += parameter(arguments.kwarg, Parameter.VAR_KEYWORD)
    returns = ast.unparse(function.returns) if function.returns else Signature.empty
    return Signature(parameters, return_annotation=returns)


def _of_function(function: Any) -> Signature:
    text, _doc, defaults = function.__nb_signature__[0]
    return parse(text, defaults)


def _of_bound(method: Any) -> Signature:
    whole = _of_function(method.__func__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def show() -> None:
    """Let ``inspect.signature`` read the signatures of nanobind's functions, methods and bound methods."""
    method: Any = _native.Peer.send_many
    samples: list[tuple[Any, Callable[[Any], Signature]]] = [
        (_native.bound, _of_function),
        (method, _of_function),
        (method.__get__(object()), _of_bound),
    ]
    for sample, read in samples:
        (namespace,) = gc.get_referents(sample.__class__.__dict__)
        namespace["__signature__"] = property(read)
