# SPDX-License-Identifier: Apache-2.0
"""Operators in programs of JAX: one XLA call for all of them (spops_call_xla_*), shapes and gradients from the rows."""
from __future__ import annotations

import ctypes
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from . import _library
from ._rows import FLOAT, FLOATS, INTS, PLAN, TENSOR, Argument, Operator, kinds, operators, python_of
from ._signature import backward_of, differentiable, extra_attributes, is_free, is_given, is_sum

TARGET = "spops"
_pointer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
for _platform, _name in (("cpu", "spops_call_xla_host"), ("CUDA", "spops_call_xla_cuda")):
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_pointer((_name, _library.c))), platform=_platform)

dtypes = {
    "f32": jnp.float32, "f64": jnp.float64, "f16": jnp.float16, "bf16": jnp.bfloat16, "f8e4m3": jnp.float8_e4m3fn,
    "f8e5m2": jnp.float8_e5m2, "i8": jnp.int8, "i32": jnp.int32, "i64": jnp.int64, "u8": jnp.uint8,
}  # fmt: skip
_sets = {"float": ("f32", "f16", "bf16"), "real": ("f32", "f16", "bf16", "f64"), "narrow": ("f8e4m3", "f8e5m2", "i8")}


class Described(NamedTuple):
    """What a plan is besides its block."""

    ints: tuple[int, ...]  # kind, version, fields; of a block also those of what it stands on
    address: int  # of a handle; 0: it is a block


class Static(NamedTuple):
    """What a call is besides its arrays."""

    plans: tuple[Described | None, ...]  # in the order of the row's plans
    attributes: tuple  # of the row, then those of its gradient alone
    wanted: tuple[str, ...]  # optional outputs
    dtype: str | None  # that the caller says of an output


# ---- Shapes and dtypes ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _compiled(text: str):
    return compile(python_of(text, lambda n: f"size({n!r})"), text, "eval")


class Shapes:
    """Sizes of one call: of its arrays, attributes and the fields of its plans."""

    def __init__(self, op: Operator, arrays: dict, plans: dict[str, Described], attributes: dict):
        self.op, self.arrays, self.plans, self.attributes = op, arrays, plans, attributes
        tensors = [a for a in op.inputs if a.kind == TENSOR]
        self.required = [a for a in tensors if not a.optional]
        self.tensors = self.required + [a for a in tensors if a.optional]

    def value(self, text: str) -> int:
        return int(eval(_compiled(text), {"size": self.size, "max": max, "min": min}))

    def size(self, name: str):
        op = self.op
        if "." in name:
            owner, field = name.split(".")
            if field in ("rows", "cols"):
                return self.arrays[owner].shape[0 if field == "rows" else -1]
            a = next(a for a in op.inputs if a.name == owner)
            return self.plans[owner].ints[2 + kinds[a.type].fields[field][0]]
        if name in self.attributes:
            return self.attributes[name]
        for a in self.required if name in op.inferred else self.tensors:
            x = self.arrays.get(a.name)
            for i, d in enumerate(a.dims):
                if d == name and x is not None:
                    return self.of_axis(a, i, x.shape)
        if name in op.inferred:
            return self.value(op.inferred[name])
        raise KeyError(f"{op.name}: size {name}")

    @staticmethod
    def of_axis(a: Argument, i: int, shape) -> int:
        if len(a.dims) == 1:
            return math.prod(shape)
        if i == 0:
            return shape[0] if len(shape) == 1 or a.blocks else math.prod(shape[:-1])
        return math.prod(shape[1:]) if a.blocks else shape[-1] if len(shape) > 1 else 1

    def dtype(self, o: Argument, asked: str | None):
        variables = [w for w in o.type.split("|") if w in self.op.variables]
        if asked is not None and is_free(self.op, o) and not o.optional:
            return jnp.dtype(asked)
        if o.type.startswith("sum("):
            return jnp.dtype(jnp.float64 if self.bound(o.type[4:-1]) == jnp.float64 else jnp.float32)
        if not variables:
            return jnp.dtype(dtypes[o.type.split("|")[0]])
        found = self.bound(variables[0])
        for base in self.op.variables[variables[0]].split("|"):
            found = found or (self.bound(base) if base in self.op.variables else None)
        if found is not None:
            return found
        allowed = [d for w in self.op.variables[variables[0]].split("|") for d in _sets.get(w, (w,))]
        first = self.arrays[self.required[0].name].dtype
        if first in [dtypes[d] for d in allowed]:
            return first
        raise TypeError(f"{self.op.name}: dtype of {o.name} is not given, expected one of {' '.join(allowed)}")

    def bound(self, variable: str):
        """The dtype that the inputs of this variable have."""
        for a in self.tensors:
            if a.type == variable and self.arrays.get(a.name) is not None:
                return self.arrays[a.name].dtype
        return None

    def output(self, o: Argument, asked: str | None) -> jax.ShapeDtypeStruct:
        shape = tuple(self.value(d) for d in o.dims)
        if o.blocks:  # as the first input of so many columns has them
            like = next(a for a in self.required if a.blocks and a.dims[1] == o.dims[1])
            shape = (shape[0], *self.arrays[like.name].shape[1:])
        return jax.ShapeDtypeStruct(shape, self.dtype(o, asked))


# ---- The call ---------------------------------------------------------------------------------------


def attribute_values(op: Operator, values) -> dict:
    """Attributes as XLA takes them: 64 bits."""
    out = {}
    for a, v in zip(op.attributes, values):
        if a.kind in (INTS, FLOATS):
            out[a.name] = np.asarray(v if v is not None else (), np.float64 if a.kind == FLOATS else np.int64)
        else:
            out[a.name] = np.float64(v) if a.kind == FLOAT else np.int64(v)
    return out


def call(op: Operator, arrays: dict, plans: dict, outputs: dict, attributes: dict, begin: dict):
    """outputs: name -> shape and dtype, in the order of the row; begin: what some of them hold before.
    plans: descriptions of all plans that are given, the one that is made included."""
    operands, present, bit = [], 0, 0
    for a in (*op.inputs, *op.outputs):
        of = arrays if a in op.inputs else outputs
        given = a.name in of or a.kind == PLAN and plans.get(a.name) is not None
        if a.optional:
            present |= given << bit
            bit += 1
        if a in op.inputs and a.name in of:
            operands.append(of[a.name])
    descriptions = []
    for a in (*op.inputs, *op.outputs):
        if a.kind == PLAN:
            d = plans.get(a.name) or Described((), 0)
            descriptions += [-1, d.address] if d.address else [len(d.ints), *d.ints]
    aliases = {}
    for i, name in enumerate(outputs):
        if name in begin:
            aliases[len(operands)] = i
            operands.append(begin[name])
    f = jax.ffi.ffi_call(TARGET, list(outputs.values()), input_output_aliases=aliases)
    return f(*operands, _operator=op.name, _present=np.int64(present), _descriptions=np.asarray(descriptions, np.int64), **attributes)


def _by_name(op: Operator, static: Static):
    plans = dict(zip([a.name for a in op.inputs if a.kind == PLAN], static.plans))
    names = [a.name for a in (*op.attributes, *extra_attributes(op))]
    return plans, dict(zip(names, static.attributes))


def _begins(op: Operator, o: Argument, arrays: dict, attributes: dict) -> bool:
    """Whether a call leaves rows of this output alone, which shall not be garbage then."""
    if not o.updated or o.optional and is_given(o):
        return False
    reasons = [arrays.get(a.name) is not None for a in op.inputs if a.optional and a.name == "num_rows"]
    reasons += [bool(attributes[a.name]) for a in op.attributes if a.name == "accumulate"]
    return any(reasons) or not reasons


def _run(op: Operator, static: Static, arrays: dict) -> tuple:
    """All outputs that are there, in the order of the row."""
    plans, attributes = _by_name(op, static)
    shapes = Shapes(op, arrays, plans, attributes)
    outputs, begin = {}, {}
    for o in op.outputs:
        if o.optional and o.name not in static.wanted:
            continue
        if is_given(o):
            begin[o.name] = arrays[o.name]
            outputs[o.name] = jax.ShapeDtypeStruct(arrays[o.name].shape, arrays[o.name].dtype)
            continue
        outputs[o.name] = shapes.output(o, static.dtype)
        if _begins(op, o, arrays, attributes):
            begin[o.name] = jnp.zeros(outputs[o.name].shape, outputs[o.name].dtype)
    numbers = attribute_values(op, static.attributes)
    return tuple(call(op, arrays, plans, outputs, numbers, begin))


def _refuse_vmap(op: Operator):
    def rule(size, batched, arrays):
        raise NotImplementedError(
            f"spops.jax.{op.name}: vmap is not supported: rows of several samples go into one call, in one plan (batch is a column of coordinates)"
        )

    return rule


@functools.lru_cache(maxsize=None)
def _unmapped(name: str, static: Static):
    op = operators[name]
    f = custom_vmap(lambda arrays: _run(op, static, arrays))
    f.def_vmap(_refuse_vmap(op))
    return f


# ---- Gradients --------------------------------------------------------------------------------------


@jax.tree_util.register_static
class _Fixed:
    """Names, as part of what a forward pass saves."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is _Fixed and self.value == other.value

    def __hash__(self):
        return hash(self.value)


_AFTER = ("scale", "shift", "residual")


def _epilogue(activation: tuple, y, after: dict):
    """What follows the sum of a layer, where it must have a gradient."""
    if "scale" in after:
        y = y * after["scale"].astype(y.dtype)
    if "shift" in after:
        y = y + after["shift"].astype(y.dtype)
    if "residual" in after:
        y = y + after["residual"]
    kind, slope = activation
    if kind < 2:
        return jnp.maximum(y, 0) if kind else y
    return run(operators["activation"], Static((), (kind, slope), (), None), {"x": y})[0]


def _without_epilogue(op: Operator, static: Static, arrays: dict):
    """The call of the sum alone, and what follows: Static, arrays, activation, arrays after the sum."""
    if not is_sum(op):
        return static, arrays, (0, 0.0), {}
    names = [a.name for a in op.attributes]
    at, slope = names.index("activation"), static.attributes[names.index("activation_slope")]
    after = {n: arrays[n] for n in _AFTER if n in arrays}
    attributes = (*static.attributes[:at], 0, *static.attributes[at + 1 :])
    rest = {n: x for n, x in arrays.items() if n not in after}
    return static._replace(attributes=attributes), rest, (static.attributes[at], slope), after


def _forward(op: Operator, static: Static, primals: dict):
    arrays = {n: p.value for n, p in primals.items()}
    needs = _Fixed(tuple(n for n, p in primals.items() if p.perturbed))
    read = [o.name for o in op.outputs if o.optional and o.name in op.gradient.arguments]
    sum_of, rest, activation, after = _without_epilogue(op, static, arrays)
    all_wanted = sum_of._replace(wanted=tuple(dict.fromkeys([*sum_of.wanted, *read])))
    names = [o.name for o in op.outputs if not o.optional or o.name in all_wanted.wanted]
    outs = dict(zip(names, _unmapped(op.name, all_wanted)(rest)))
    result = {n: outs[n] for n in names if n not in read or n in static.wanted}
    first = op.outputs[0].name
    saved = {o.name: outs[o.name] for o in op.outputs if o.name in op.gradient.arguments}
    if activation[0] or after:
        saved["_sum"] = outs[first]
        result[first] = _epilogue(activation, outs[first], after)
    return tuple(result.values()), (arrays, saved, needs)


def _backward(op: Operator, static: Static, residuals, cotangents):
    arrays, saved, needs = residuals[0], residuals[1], residuals[2].value
    gradient, back = op.gradient, backward_of(op)
    names = [o.name for o in op.outputs if not o.optional or o.name in static.wanted]
    grads_out = {n: jnp.zeros(g.shape, g.dtype) if isinstance(g, SymbolicZero) else g for n, g in zip(names, cotangents)}
    sum_of, rest, activation, after = _without_epilogue(op, static, arrays)
    first, grads = op.outputs[0].name, dict.fromkeys(arrays)
    if "_sum" in saved:
        _, pull = jax.vjp(lambda y, a: _epilogue(activation, y, a), saved["_sum"], after)
        grads_out[first], of_after = pull(grads_out[first])
        grads.update({n: g for n, g in of_after.items() if n in needs})
    given = {}
    for b in back.inputs:
        if b.kind == PLAN or b.name not in gradient.arguments:
            continue
        if b.name.startswith("grad_"):
            like = next((a.name for a in op.inputs if a.type == b.type and not a.optional), None)
            g = grads_out[first if b.name == "grad_sum" else b.name[5:]]
            given[b.name] = g if like is None else g.astype(arrays[like].dtype)
        elif b.name in rest or b.name in saved:
            given[b.name] = rest[b.name] if b.name in rest else saved[b.name]
    wanted = [o.name for o, x in zip(back.outputs, gradient.inputs) if o.optional and x in needs]
    if wanted or any(not o.optional and x in needs for o, x in zip(back.outputs, gradient.inputs)):
        plans, attributes = _by_name(op, sum_of)
        of_plans = tuple(plans[b.name] for b in back.inputs if b.kind == PLAN)
        given.update({b.name: arrays[b.name] for b in back.inputs if b.kind == PLAN and b.name in arrays})
        how = Static(of_plans, tuple(attributes[a.name] for a in back.attributes), tuple(wanted), None)
        there = [(o, x) for o, x in zip(back.outputs, gradient.inputs) if not o.optional or o.name in wanted]
        for (_, x), g in zip(there, _unmapped(back.name, how)(given)):
            if x in arrays:
                grads[x] = g.reshape(arrays[x].shape).astype(arrays[x].dtype)
    if is_sum(op) and "bias" in needs and "bias" not in gradient.inputs:
        grads["bias"] = grads_out[first].sum(0, dtype=arrays["bias"].dtype)
    return (grads,)


@functools.lru_cache(maxsize=None)
def _differentiable(name: str, static: Static):
    op = operators[name]
    f = jax.custom_vjp(_unmapped(name, static))
    f.defvjp(functools.partial(_forward, op, static), functools.partial(_backward, op, static), symbolic_zeros=True)
    return f


def run(op: Operator, static: Static, arrays: dict) -> tuple:
    """Outputs of a call, with their gradients where the row has one."""
    if backward_of(op) is None or not any(n in arrays for n in differentiable(op)):
        return _unmapped(op.name, static)(arrays)
    return _differentiable(op.name, static)(arrays)
