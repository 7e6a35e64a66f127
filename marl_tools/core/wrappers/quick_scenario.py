"""mpe2's own rewards and observations with three expressions exchanged for quicker ones of the same value.

Most of what a reward costs is NumPy's overhead on vectors of two: ``np.sqrt(np.sum(np.square(vector)))``.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from functools import cache
from math import sqrt
from types import FunctionType
from typing import Any

import numpy as np

_FLOAT = np.dtype(np.float64)
_STATE = ("p_pos", "p_vel", "c")


def quick_scenario(scenario: Any) -> Any:
    """A second face of ``scenario``, an mpe2 one, that shares its state and computes the same to the bit.

    A NumPy warning that a square overflows is all that may be missing.
    """
    quick = object.__new__(_quick_class(type(scenario)))
    quick.__dict__ = scenario.__dict__
    return quick


@cache
def _quick_class(scenario_class: type) -> type:
    functions = {
        name: member
        for name, member in vars(_rewritten(scenario_class)).items()
        # `super()` would look for the class that it was compiled in.
        if isinstance(member, FunctionType) and "__class__" not in member.__code__.co_freevars
    }
    return type(scenario_class.__name__, (scenario_class,), {"__module__": __name__, **functions})


def _rewritten(scenario_class: type) -> type:
    """The class compiled anew from its source; the class itself where there is no source."""
    try:
        lines, first = inspect.getsourcelines(scenario_class)
    except OSError:
        return scenario_class
    tree = _Rewrite().visit(ast.parse(textwrap.dedent("".join(lines))))
    # An error shall still point to its line in mpe2.
    ast.increment_lineno(ast.fix_missing_locations(tree), first - 1)
    module = sys.modules[scenario_class.__module__]
    namespace = {**vars(module), _squared_length.__name__: _squared_length, _length.__name__: _length}
    exec(compile(tree, str(module.__file__), "exec"), namespace)
    return namespace[scenario_class.__name__]


class _Rewrite(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(
                func=function, args=[ast.Call(func=inner, args=[vector], keywords=[])], keywords=[]
            ):
                names = ast.unparse(function), ast.unparse(inner)
                if names == ("np.sum", "np.square"):
                    return _call(_squared_length.__name__, vector)
                if names == ("np.sqrt", _squared_length.__name__):
                    return _call(_length.__name__, vector)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``entity.state.p_pos`` without the property that only checks that there is one."""
        self.generic_visit(node)
        match node:
            case ast.Attribute(value=ast.Attribute(attr="state"), attr=name, ctx=ast.Load()) if (
                name in _STATE
            ):
                node.attr = f"_{name}"
        return node


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _squared_length(vector: Any) -> Any:
    """``np.sum(np.square(vector))``."""
    if type(vector) is np.ndarray and vector.shape == (2,) and vector.dtype is _FLOAT:
        x, y = vector.tolist()
        return np.float64(x * x + y * y)
    return np.sum(np.square(vector))


def _length(vector: Any) -> Any:
    """``np.sqrt(np.sum(np.square(vector)))``."""
    if type(vector) is np.ndarray and vector.shape == (2,) and vector.dtype is _FLOAT:
        x, y = vector.tolist()
        return np.float64(sqrt(x * x + y * y))
    return np.sqrt(np.sum(np.square(vector)))
