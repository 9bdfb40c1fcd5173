"""The algebra of recurrences: which Python it may be written in, so that it runs in jnp and inside the kernel alike."""

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax.numpy as jnp

FUNCTIONS = ("where", "exp", "log", "minimum", "maximum")
"""What `jnp` has inside the kernel; `rltriton_jax.scan.triton.algebra` defines each."""

ALLOWED = (
    "names, numbers, +, -, *, /, single comparisons, &, |, ~, tuples, assignments, return, "
    f"{', '.join('jnp.' + f for f in FUNCTIONS)}, and calls of a module's functions that are written so too"
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitAnd, ast.BitOr, ast.BitXor, ast.USub, ast.UAdd, ast.Invert)
_PASSIVE = (ast.Module, ast.Return, ast.Assign, ast.Tuple, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop)


def check_algebra(function: Callable[..., Any]) -> None:
    """Raises a ValueError that names what the kernel would not understand in `function`, or in what that calls."""
    _check(function, ())


def _check(function, callers) -> None:
    for helper in helpers(function).values():
        if helper in (*callers, function):
            raise ValueError(f"{_name(helper)} calls itself, which the kernel cannot; write it without recursion.")
        _check(helper, (*callers, function))


@functools.cache
def helpers(function: Callable[..., Any]) -> dict[str, types.FunctionType]:
    """The functions of a module that `function` calls, by the names that it calls them by; read once."""
    return dict(_Reader(function).called())


def _name(function) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


class _Reader:
    """Reads the source of one function of the algebra."""

    def __init__(self, function):
        self.function = function
        if not isinstance(function, types.FunctionType) or function.__name__ == "<lambda>":
            self.refuse("it is no function that a def statement makes")
        if function.__closure__:
            names = ", ".join(function.__code__.co_freevars)
            self.refuse(f"it closes over {names}; declare a read for what it needs")
        try:
            source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError):
            self.refuse("its source cannot be read; define it in a file or a notebook cell")
        definition = ast.parse(source).body[0]
        if not isinstance(definition, ast.FunctionDef):
            self.refuse("it is no function that a def statement makes")
        self.body = definition.body
        stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.local = stored | set(inspect.signature(function).parameters)

    def refuse(self, reason: str, node: ast.AST | None = None) -> NoReturn:
        where = _name(self.function)
        if node is not None:
            where += f", line {self.function.__code__.co_firstlineno + getattr(node, 'lineno', 1) - 1}"
        raise ValueError(f"the algebra cannot hold {where}: {reason}. The kernel understands {ALLOWED}.")

    def called(self) -> Iterator[tuple[str, types.FunctionType]]:
        """The module's functions that are called, by name; refuses what is not allowed."""
        for statement in self.body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):  # a docstring
                yield from self._visit(statement)

    def _visit(self, node: ast.AST) -> Iterator[tuple[str, types.FunctionType]]:
        match node:
            case ast.Call():
                yield from self._call(node)
                return
            case ast.Attribute(value=ast.Name(id=name)) if name in self.local:
                return
            case ast.Name(id=name, ctx=ast.Load()) if name not in self.local:
                self.refuse(f"{name} is no argument; declare a read for it, or write its number", node)
            case ast.Name() | ast.Constant(value=bool() | int() | float()):
                return
            case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.AugAssign(op=op) if isinstance(op, _OPERATORS):
                pass
            case ast.Compare(ops=[op]) if not isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn):
                pass
            case _ if not isinstance(node, _PASSIVE):
                self.refuse(f"`{ast.unparse(node)}` is not understood", node)
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child)

    def _call(self, node: ast.Call) -> Iterator[tuple[str, types.FunctionType]]:
        names = self.function.__globals__
        match node.func:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module not in self.local:
                if module != "jnp" or names.get("jnp") is not jnp or name not in FUNCTIONS:
                    self.refuse(f"`{ast.unparse(node.func)}` is not understood (jnp being jax.numpy)", node)
            case ast.Name(id=name) if name not in self.local and isinstance(names.get(name), types.FunctionType):
                if names[name].__module__.startswith("jax."):
                    self.refuse(f"the call `{name}(...)` is not understood; write it as jnp's", node)
                yield name, names[name]
            case _:
                self.refuse(f"the call `{ast.unparse(node.func)}(...)` is not understood", node)
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.refuse(f"`{ast.unparse(node)}` has arguments by keyword or by *; give them in order", node)
        for argument in node.args:
            yield from self._visit(argument)
