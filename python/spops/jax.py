# SPDX-License-Identifier: Apache-2.0
"""Every operator of the library as a function of JAX arrays, under the name of its row.

Functions that make plans (``segments``, ``coords``, ``kernel_map``, ``sparseconv_plan``, ...) return
a :class:`Plan`, a pytree of one array with a static description. Outside of ``jit`` a plan has exact
sizes, and making it waits for the device. Inside, sizes are capacities: those of the arrays, or what
the caller names by the fields of the plan's kind (``kernel_map(..., max_pairs=100_000)``).

The others take plans and arrays and return arrays. ``jit``, ``grad`` and ``value_and_grad`` take them
all; gradients are those that a function's docstring names, once. ``vmap`` is refused: rows of several
samples go into one call. Names of enumerators are strings. ``help(spops.jax.segreduce)`` has shapes and
dtypes.
"""
from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ._jax_calls import Static, run
from ._jax_plans import Plan, blocks_of, counts_of, make
from ._rows import ENUM, FLAGS, FLOAT, FLOATS, INTS, PLAN, TENSOR, Argument, Operator, of_tensors as operators
from ._signature import all_optional, documentation, extra_attributes, free_outputs, is_given, python_name
from ._signature import parameters as _parameters


def parameters(op: Operator) -> list[tuple[str, str, str]]:
    """Of the public function: (name, annotation, default, "" where there is none)."""
    out = _parameters(op, "Array")
    if op.makes_plan:
        return out
    for o in op.outputs:
        if o.optional and is_given(o):
            out.append((python_name(o.name), "Array | None", "None"))
        elif o.optional:
            out.append((python_name(o.name), "bool", repr(all_optional(op))))
    if free_outputs(op):
        out.append(("dtype", "DTypeLike | None", "None"))
    return out


def _array(op: Operator, a: Argument, x):
    """x as the operator takes it: indices in i32."""
    if isinstance(x, Plan):
        raise TypeError(f"{op.name}: {a.name} is a Plan, expected an array")
    x = jnp.asarray(x)
    if a.type != "i32" or x.dtype == jnp.int32:
        return x
    if x.dtype in (jnp.uint8, jnp.int8, jnp.int16, jnp.uint16):
        return x.astype(jnp.int32)
    raise TypeError(f"{op.name}: {a.name} is {x.dtype}, expected int32")


def _plan(op: Operator, a: Argument, x):
    if not isinstance(x, Plan) or x.kind != a.type:
        found = f"a Plan of kind {x.kind}" if isinstance(x, Plan) else f"of type {type(x).__name__}"
        raise TypeError(f"{op.name}: {a.name} is {found}, expected a Plan of kind {a.type}")
    return x


def _number(op: Operator, a: Argument, v):
    """An attribute's value: numbers for names, tuples for lists."""
    if a.kind in (INTS, FLOATS):
        if v is None:
            return None
        of = float if a.kind == FLOATS else int
        return tuple(of(x) for x in (v if hasattr(v, "__len__") else [v]))
    if isinstance(v, str):
        names = v.split("|") if a.kind == FLAGS else [v]
        for n in names:
            if n not in a.values:
                raise ValueError(f'{op.name}: {a.name} is "{v}", expected {" ".join(a.values)}')
        numbers = [a.values.index(n) for n in names]
        return numbers[0] if a.kind == ENUM else sum(1 << n for n in numbers)
    return float(v) if a.kind == FLOAT else int(v)


def _collect(op: Operator, values: dict):
    """Arrays and plans that are given, and all attributes."""
    arrays, plans = {}, {}
    for a in op.inputs:
        v = values[python_name(a.name)]
        if v is None and not a.optional:
            raise TypeError(f"{op.name}: {a.name} is None")
        if v is not None and a.kind == PLAN:
            plans[a.name] = _plan(op, a, v)
        elif v is not None:
            arrays[a.name] = _array(op, a, v)
    attributes = {a.name: _number(op, a, values[python_name(a.name)]) for a in (*op.attributes, *extra_attributes(op))}
    return arrays, plans, attributes


def _maker(op: Operator, signature: inspect.Signature):
    names = set(signature.parameters)

    def f(*args, **kwargs):
        asked = {n: kwargs.pop(n) for n in list(kwargs) if n not in names}
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return make(op, *_collect(op, bound.arguments), asked)

    return f


def _caller(op: Operator, signature: inspect.Signature):
    def f(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        arrays, plans, attributes = _collect(op, values)
        wanted = []
        for o in op.outputs:
            asked = values.get(python_name(o.name))
            if not o.optional or asked is None or asked is False:
                continue
            if is_given(o):
                arrays[o.name] = jnp.asarray(asked)
            elif o.needs and any(a.name == o.needs for a in op.inputs) and o.needs not in arrays:
                continue
            wanted.append(o.name)
        dtype = values["dtype"] if free_outputs(op) else None
        static = Static(
            tuple(plans[a.name].described if a.name in plans else None for a in op.inputs if a.kind == PLAN),
            tuple(attributes.values()), tuple(wanted), None if dtype is None else jnp.dtype(dtype).name,
        )  # fmt: skip
        arrays.update(blocks_of(plans))
        outs = run(op, static, arrays)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return f


def _function(op: Operator):
    of, empty = parameters(op), inspect.Parameter.empty
    signature = inspect.Signature([
        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=eval(d) if d else empty, annotation=t) for n, t, d in of
    ])  # fmt: skip
    f = _maker(op, signature) if op.makes_plan else _caller(op, signature)
    more = [f"dtype : of {', '.join(o.name for o in free_outputs(op))}"] if free_outputs(op) else []
    if op.makes_plan:
        more.append(f"capacities : int; fields of a plan of kind {op.outputs[0].type} by their names, where its sizes are not to be exact")
        if counts_of(op):
            more[-1] += "; all rows count where " + " ".join(a.name for a in counts_of(op)) + " is not given"
    f.__doc__ = "\n".join([
        documentation(op, of, more), "", "Raises", "------",
        "TypeError, ValueError: where the call is traced; jax.errors.JaxRuntimeError with the library's line where it runs.", "",
        "Notes", "-----", f"Calls ``{op.function}``; its contract is in the C header.",
    ])  # fmt: skip
    f.__name__, f.__qualname__, f.__module__, f.__signature__ = op.name, op.name, __name__, signature
    return f


globals().update({name: _function(op) for name, op in operators.items()})


# ---- Networks ---------------------------------------------------------------------------------------


class Level(NamedTuple):
    """What layers at one level of a network need; ``down`` and ``up`` are None at the last.

    Attributes
    ----------
    coords : Plan of kind coords
    num_rows : i32 [1], rows in use
    within : Plan of kind sparseconv, of submanifold convolutions
    down, up : Plan of kind sparseconv, onto the next level and back from it, taps with the last axis fastest
    """

    coords: Plan
    num_rows: jax.Array
    within: Plan
    down: Plan | None
    up: Plan | None


def levels(coords: Plan, num: int, size: int = 3, stride: int = 2, rows: Sequence[int] | None = None,
            pairs_per_row: int | None = None) -> list[Level]:  # fmt: skip
    """The plans of a network whose levels halve the grid, as U-Nets have them.

    Parameters
    ----------
    coords : Plan of kind coords
        The places of level 0.
    num : int
    size : int
        Of the submanifold kernels, along each axis.
    stride : int
        Windows of so many places along each axis become one place of the next level.
    rows : sequence of ints, optional
        Capacities of all levels, inside of jit; None: exact, outside of it.
    pairs_per_row : int, optional
        Capacity of submanifold maps, in pairs a row; None: one for each tap, which is never too few.

    Returns
    -------
    list of Level
    """
    make = globals()
    sets, out = [coords], []
    for i in range(num):
        most = {} if rows is None or pairs_per_row is None else dict(max_pairs=pairs_per_row * rows[i])
        within = make["sparseconv_plan"](make["kernel_map"](sets[i], size=size, **most), backward=True)
        between = [None, None]
        if i + 1 < num:
            more = {} if rows is None else dict(max_rows=rows[i + 1])
            sets.append(make["coords_down"](sets[i], size=stride, stride=stride, order="lexicographic", **more))
            window = dict(size=stride, stride=stride, **({} if rows is None else dict(max_pairs=rows[i])))  # a row is in one window
            maps = make["kernel_map"](*sets[i:], kind="convolution", **window), make["kernel_map"](*sets[:-3:-1], kind="transposed", **window)
            between = [make["sparseconv_plan"](m, backward=True) for m in maps]
        out.append(Level(sets[i], make["coords_rows"](sets[i])[1], within, *between))
    return out


__all__ = ["Level", "Plan", "levels", *operators]
