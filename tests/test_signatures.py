# SPDX-License-Identifier: BSD-3-Clause
"""Everything public says at run time how it is called and what it does."""

import ast
import inspect
from pathlib import Path

import pytest
from tests.public_names import public_names

import weft
from weft import _signatures

ROOT = Path(weft.__file__).parent


def public():
    """Give every public name, and every public attribute of the classes among them that is weft's own."""
    for name, thing in public_names():
        yield name, thing
        if inspect.isclass(thing):
            for member in (m for m in dir(thing) if not m.startswith("_")):
                owner = next(c for c in thing.__mro__ if member in vars(c))
                if owner.__module__.partition(".")[0] == "weft":
                    yield f"{name}.{member}", inspect.getattr_static(thing, member)


PUBLIC = dict(public())
CALLABLE = {name: getattr(thing, "__func__", thing) for name, thing in PUBLIC.items() if callable(thing)}


def documentation_of(thing):
    """What somebody wrote of it; nanobind makes a line of its own where nobody did."""
    function = thing.fget if isinstance(thing, property) else thing
    if hasattr(function, "__nb_signature__"):
        return function.__nb_signature__[0][1]
    return inspect.getdoc(thing)


def is_field(thing):
    """Fields of a dataclass or a named tuple stand in the documentation of their class."""
    return not (callable(thing) or isinstance(thing, property))


def test_what_is_looked_at_is_there():
    assert {"weft.Worker.arm", "weft.Peer.send", "weft.Peer.send_many", "weft.dask.transports"} <= CALLABLE.keys()
    assert len(CALLABLE) > 100


def test_everything_callable_has_a_signature():
    without = set()
    for name, thing in CALLABLE.items():
        try:
            inspect.signature(thing)
        except ValueError:
            without.add(name)
    # those that only weft makes: there is no call to describe, and calling them says so
    assert without == {
        f"weft.{name}" for name in ("ActiveMessage", "Endpoint", "Memory", "Rkey", "SockaddrListener", "TagMessage")
    }
    for name in without:
        with pytest.raises(TypeError, match="no constructor"):
            CALLABLE[name]()


def methods_of_stub():
    """The methods of the stub, as ``Class.method``: their parameters as (name, kind, default)."""
    for node in ast.parse((ROOT / "_native.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef):
            for method in (m for m in node.body if isinstance(m, ast.FunctionDef)):
                overloaded = any(isinstance(d, ast.Name) and d.id == "overload" for d in method.decorator_list)
                is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in method.decorator_list)
                if not (overloaded or is_property or method.name.startswith("_")):
                    text = f"def {method.name}({ast.unparse(method.args)})"
                    yield f"{node.name}.{method.name}", _signatures.parse(text, None)


@pytest.mark.parametrize(("name", "expected"), [*methods_of_stub()], ids=str)
def test_native_signatures_are_those_of_the_stub(name, expected):
    cls, method = name.split(".")
    given = inspect.signature(getattr(getattr(weft._native, cls), method))
    assert [*given.parameters] == [*expected.parameters]
    for parameter in [*given.parameters.values()][1:]:
        assert parameter.default == expected.parameters[parameter.name].default
        assert parameter.kind == expected.parameters[parameter.name].kind


def test_a_bound_method_has_no_self(worker, endpoint):
    assert [*inspect.signature(worker.tag_probe).parameters] == ["tag", "mask", "remove"]
    assert [*inspect.signature(endpoint.tag_send).parameters] == ["buffer", "tag"]


def test_the_getter_of_a_property_has_a_signature():
    getters = {name: thing.fget for name, thing in PUBLIC.items() if isinstance(thing, property)}
    assert {"weft.Worker.closed", "weft.Memory.nbytes", "weft.Peer.closed"} <= getters.keys()
    assert {name for name, getter in getters.items() if [*inspect.signature(getter).parameters] != ["self"]} == set()


def test_annotations_are_text_that_names_what_there_is():
    signature = inspect.signature(weft.Endpoint.put)
    assert signature.parameters["rkey"].annotation == "Rkey"
    assert signature.return_annotation == "weft.typing.Request[None]"


def test_a_worker_takes_a_context():
    assert inspect.signature(weft.Worker).parameters["context"].annotation == "Context"
    with pytest.raises(TypeError, match=r"pass a weft\.Context"):
        weft.Worker(None)


def test_a_default_that_is_no_literal_is_the_value_itself():
    marker = object()
    signature = _signatures.parse(
        "def f(self, a: int = 3, *more: str, b: object = \\0, **rest: int) -> None", (marker,)
    )
    assert signature.parameters["b"].default is marker
    assert str(signature).startswith("(self, a: 'int' = 3, *more: 'str', b: 'object' = <object")


def test_everything_public_is_documented():
    without = {name for name, thing in PUBLIC.items() if not is_field(thing) and not documentation_of(thing)}
    assert without == set()


def test_what_takes_arguments_says_what_they_are():
    """Each parameter by its name, in the text; of methods that take none but a value or two, the first line will do."""
    silent = {}
    for name, thing in CALLABLE.items():
        if inspect.isclass(thing) or name.startswith("weft.dask.UCX"):  # distributed's interface, documented there
            continue
        parameters = [p for p in inspect.signature(thing).parameters if p not in ("self", "cls")]
        text = documentation_of(thing)
        if unnamed := [p for p in parameters if p not in text]:
            silent[name] = unnamed
    assert silent == {}
