# SPDX-License-Identifier: Apache-2.0
"""The list of operators and the kinds of plans, read from the library when it is loaded.

No operator is named in this package's core: what follows here is made from these rows.
"""
from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field

from . import _library

TENSOR, PLAN, INT, FLOAT, ENUM, FLAGS, INTS, FLOATS, COMM = range(9)


@dataclass(frozen=True)
class Argument:
    """An input, output or attribute of an operator, as spops_operator_argument has it."""

    name: str
    kind: int
    optional: bool
    needs: str
    type: str
    dims: tuple[str, ...]
    dense: bool
    may_be: str
    updated: bool
    first: str
    last: str
    values: tuple[str, ...]
    default: object
    count: int
    has_default: bool
    blocks: str  # the attribute that says in how many blocks its columns lie


@dataclass(frozen=True)
class Gradient:
    """The gradient of an operator: gradient(arguments) -> gradients of these inputs."""

    operator: str
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """A row of the list."""

    name: str
    function: str
    doc: str
    index: int
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attributes: tuple[Argument, ...]
    variables: dict[str, str]  # of dtypes: what they may be
    inferred: dict[str, str]  # sizes that no input alone gives
    gradient: Gradient | None
    num_optional: int
    needs_handles: bool  # of this process: a communicator, a plan that is never a block

    @property
    def makes_plan(self) -> bool:
        return any(o.kind == PLAN for o in self.outputs)


@dataclass(frozen=True)
class Kind:
    """A kind of plans: its fields by name, as (place, sizes, whether they are doubles)."""

    name: str
    number: int
    version: int
    fields: dict[str, tuple[int, tuple[int, ...], bool]]
    num_fields: int
    parents: tuple[str, ...]


def _text(s: bytes | None) -> str:
    return "" if s is None else s.decode()


def _default(text: str, name: str) -> bool:
    """Whether the row's text gives this attribute a default; lists are empty by default."""
    match = re.search(rf"(?:^|\s){name}:(\S+)", text)
    return match is not None and ("=" in match.group(1) or "(" in match.group(1))


def _argument(a, text: str) -> Argument:
    name, kind, dims = a.name.decode(), a.kind, tuple(_text(a.dims[i]) for i in range(a.num_dims))
    blocks = re.search(rf"(?:^|\s){name}\??\w*:[^\s\[]*\[[^\s]*\][^\s/]*/(\w+)", text)
    default: object = a.int_default
    if kind == FLOAT:
        default = a.float_default
    elif kind in (INTS, FLOATS):
        default = None
    values = tuple(v for v in _text(a.values).split() if v != "...")
    if kind == ENUM and a.int_default < len(values):
        default = values[a.int_default]
    if kind == INT and a.type == b"bool":
        default = bool(default)
    return Argument(
        name, kind, bool(a.is_optional), _text(a.needs), _text(a.type), dims, bool(a.is_dense),
        _text(a.may_be), bool(a.is_updated), _text(a.first), _text(a.last), values, default,
        a.count, kind in (TENSOR, PLAN, COMM) or _default(text, name), blocks.group(1) if blocks else "",
    )  # fmt: skip


def _gradient(text: str) -> Gradient | None:
    match = re.match(r"(\w+)\((.*)\) -> (.*)$", text)
    if match is None:
        return None
    return Gradient(match.group(1), *(tuple(w.strip() for w in match.group(i).split(",")) for i in (2, 3)))


def _operator(o) -> Operator:
    texts = [_text(t) for t in (o.inputs, o.outputs, o.attributes)]
    counts, at, parts = (o.num_inputs, o.num_outputs, o.num_attributes), 0, []
    for text, n in zip(texts, counts):
        parts.append(tuple(_argument(o.arguments[at + i].contents, text) for i in range(n)))
        at += n
    variables = dict(w.split(":", 1) for w in _text(o.types).split() if ":" in w)
    inferred = dict(w.split("~", 1) for w in _text(o.types).split() if "~" in w)
    return Operator(
        o.name.decode(), o.function.decode(), _text(o.doc), o.index, *parts, variables, inferred,
        _gradient(_text(o.gradient)), o.num_optional, bool(o.needs_handles),
    )  # fmt: skip


def _kind(k) -> Kind:
    fields, at = {}, 0
    for word in _text(k.fields).split():
        name, sizes, f64 = re.match(r"(\w+)((?:\[\d+\])*)(:f64)?$", word).groups()
        shape = tuple(int(n) for n in re.findall(r"\d+", sizes))
        fields.setdefault(name, (at, shape, f64 is not None))
        n = 1
        for s in shape:
            n *= s
        at += n
    return Kind(_text(k.name), k.kind, k.version, fields, at, tuple(_text(k.parents).split()))


def _read():
    n = ctypes.c_int32()
    rows = _library.c.spops_operators(ctypes.byref(n))
    ops = {}
    for i in range(n.value):
        op = _operator(rows[i].contents)
        ops[op.name] = op
    kinds = _library.c.spops_plan_kinds(ctypes.byref(n))
    first, size = ctypes.addressof(kinds.contents), kinds.contents.struct_size  # which a later library may have more of
    found = (_kind(type(kinds.contents).from_address(first + i * size)) for i in range(n.value))
    return ops, {k.name: k for k in found}


operators, kinds = _read()
of_tensors = {name: op for name, op in operators.items() if not op.needs_handles}  # what files, engines and XLA have


# ---- Expressions ----------------------------------------------------------------------------------


class _Expression:
    """Turns an expression of a row into one of Python; `names` maps its names to Python's."""

    def __init__(self, text: str, names):
        self.tokens = re.findall(r"[A-Za-z_][\w.]*|\d+|[-+*/(),]", text)
        self.names, self.at = names, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self) -> str:
        s = self.product()
        while self.peek() in ("+", "-"):
            s = f"{s} {self.take()} {self.product()}"
        return s

    def product(self) -> str:
        s = self.atom()
        while self.peek() in ("*", "/"):
            s = f"{s} {'//' if self.take() == '/' else '*'} {self.atom()}"
        return s

    def atom(self) -> str:
        t = self.take()
        if t == "(":
            s = self.sum()
            self.take()
            return f"({s})"
        if t.isdigit():
            return t
        if self.peek() != "(":
            return self.names(t)
        self.take()
        args = [self.sum()]
        while self.take() == ",":
            args.append(self.sum())
        if t == "if":
            return f"({args[1]} if {args[0]} else {args[2]})"
        return f"{t}({', '.join(args)})"


def python_of(text: str, names) -> str:
    """A row's expression as one of Python; names(name) gives Python's for each of its names."""
    return _Expression(text, names).sum()
