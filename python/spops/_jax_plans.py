# SPDX-License-Identifier: Apache-2.0
"""Plans of JAX: a block, which is an array, and a description, which is static."""
from __future__ import annotations

import math
import struct

import jax
import jax.numpy as jnp

from . import _boxed
from ._jax_calls import Described, Shapes, attribute_values, call
from ._rows import ENUM, TENSOR, Operator, kinds

_by_number = {k.number: k for k in kinds.values()}
BLOCK_ELEMENT = 4  # bytes of an i32


class Handle:
    """A plan that is no block: it lives in the library, and is static in a program."""

    def __init__(self, address: int, keeps: tuple, is_part: bool):
        self.address, self.keeps, self.is_part = address, keeps, is_part

    def __del__(self, destroy=_boxed.destroy):
        if not self.is_part:
            destroy(self.address)


class Plan:
    """A plan of any kind, as a pytree: its block is an array, its description static.

    Made by functions of spops.jax, such as ``segments`` or ``kernel_map``, outside of ``jit`` with
    exact sizes, inside with capacities, and taken by others. It is never changed.

    Fields of its kind are attributes: ``plan.num_segments``, ``map.max_out``; arrays of fields are
    lists. ``dir(plan)`` names them.

    Attributes
    ----------
    kind : str
    ints : tuple of int
        The description: kind, version and fields, then those of the plans that it stands on.
    block : jax.Array or None
        i32 [n]: the plan's arrays, and those of the plans that it stands on.
    handle : Handle or None
        Of a plan that the library makes in no block: then the plan as a whole is static, and a program
        is compiled again for another one.
    """

    __slots__ = ("kind", "ints", "block", "handle")

    def __init__(self, ints: tuple[int, ...], block, handle: Handle | None = None):
        self.kind, self.ints, self.block, self.handle = _by_number[ints[0]].name, ints, block, handle

    def field(self, name: str):
        """A field of the plan's kind."""
        at, sizes, f64 = kinds[self.kind].fields[name]
        values = self.ints[2 + at : 2 + at + math.prod(sizes)]
        if f64:
            values = tuple(struct.unpack("d", struct.pack("q", v))[0] for v in values)
        return list(values) if sizes else values[0]

    def __getattr__(self, name: str):
        if name not in kinds[self.kind].fields:
            raise AttributeError(f"a plan of kind {self.kind} has no field {name}")
        return self.field(name)

    def __dir__(self):
        return [*super().__dir__(), *kinds[self.kind].fields]

    @property
    def described(self) -> Described:
        return Described(self.ints, self.handle.address if self.handle else 0)

    def __repr__(self) -> str:
        shown = [f for f, (_, sizes, _) in kinds[self.kind].fields.items() if not sizes]
        return f"<Plan {self.kind}: " + ", ".join(f"{f} {self.field(f)}" for f in shown) + ">"


jax.tree_util.register_pytree_with_keys(
    Plan,
    lambda p: (((jax.tree_util.GetAttrKey("block"), p.block),), (p.ints, p.handle)),
    lambda of, children: Plan(of[0], children[0], of[1]),
    lambda p: ((p.block,), (p.ints, p.handle)),
)


def blocks_of(plans: dict[str, Plan]) -> dict:
    return {n: p.block for n, p in plans.items() if p.handle is None}


def is_traced(x) -> bool:
    return isinstance(x, jax.core.Tracer)


def _device_of(arrays):
    """(DLPack's kind, number) of where arrays lie, or of where a program will run."""
    for x in arrays:
        if not is_traced(x):
            device = next(iter(x.devices()))
            break
    else:
        default = jax.config.jax_default_device
        device = default if default is not None and not isinstance(default, str) else jax.local_devices(backend=default)[0]
    if device.platform == "cpu":
        return _boxed.HOST, 0
    return _boxed.CUDA, device.local_hardware_id or 0


def _memory(x) -> _boxed.Memory:
    place = _device_of([x])
    return _boxed.Memory(x.unsafe_buffer_pointer(), x.shape, x.dtype.name, *place)


# ---- Descriptions -----------------------------------------------------------------------------------


def _num_candidates(op: Operator, dims: int, attributes: dict) -> int:
    size, stride = (_per_axis(attributes[n], dims, 1) for n in ("size", "stride"))
    return math.prod(size if op.name == "coords_up" else [-(-k // s) for k, s in zip(size, stride)])


def _per_axis(v, dims: int, default: int) -> list[int]:
    v = list(v or ())
    return (v * dims if len(v) == 1 else v or [default] * dims)[:dims]


def _box_of_derived(op: Operator, plan: Plan, attributes: dict) -> tuple[list[int], list[int]]:
    """The box that a strided or a generative transposed convolution reaches."""
    dims = plan.dims
    size, stride, padding, dilation = (_per_axis(attributes[n], dims, d) for n, d in (("size", 1), ("stride", 1), ("padding", 0), ("dilation", 1)))
    lower, upper = plan.lower[:1], plan.upper[:1]
    for a in range(dims):
        reach, lo, hi = dilation[a] * (size[a] - 1), plan.lower[1 + a], plan.upper[1 + a]
        if op.name == "coords_up":
            lower.append(lo * stride[a] - padding[a])
            upper.append(hi * stride[a] - padding[a] + reach)
        else:
            lower.append(-(-(lo + padding[a] - reach) // stride[a]))
            upper.append((hi + padding[a]) // stride[a])
    return lower, upper


def _capacities(op: Operator, shapes: Shapes, plans: dict[str, Plan], asked: dict) -> dict:
    """Fields of a plan to be made that follow from sizes of arrays, or that the caller says."""
    found = {}
    n = lambda name: shapes.size(name)
    if op.name == "segments":
        m = n("M")
        found = dict(max_terms=m, num_rows=shapes.attributes["num_rows"] or m, num_weights=shapes.attributes["num_weights"] or m)
    elif op.name == "triplets":
        found = dict(max_triplets=n("M"))
    elif op.name == "triplets_offsets":
        terms = asked.get("max_triplets", 0)
        found = dict(num_matrices=shapes.arrays["offsets"].shape[0] - 1, num_out=terms, num_in=terms)
    elif op.name == "coords":
        found = dict(dims=n("D") - 1, max_rows=n("N"), max_items=n("N"))
    elif op.name in ("coords_down", "coords_up"):
        of = plans["in"]
        each = _num_candidates(op, of.dims, shapes.attributes)
        lower, upper = _box_of_derived(op, of, shapes.attributes)
        found = dict(dims=of.dims, max_rows=of.max_rows * each, max_items=of.max_rows * each, lower=lower, upper=upper)
    elif op.name == "coords_union":
        a, b = plans["a"], plans["b"]
        rows = a.max_rows + b.max_rows
        found = dict(dims=a.dims, max_rows=rows, max_items=rows, lower=[*map(min, a.lower, b.lower)], upper=[*map(max, a.upper, b.upper)])
    elif op.name == "coords_pruned":
        of = plans["in"]
        found = dict(dims=of.dims, max_rows=of.max_rows, max_items=of.max_rows, lower=of.lower, upper=of.upper)
    elif op.name in ("coords_children", "coords_grown"):
        of, grows = plans["in"], op.name == "coords_grown"
        factor = shapes.attributes.get("factor", 2)
        sizes = _per_axis(shapes.attributes["size"], of.dims, 3) if grows else [factor] * of.dims
        each = math.prod(sizes)
        reach = [d * (s // 2) for s, d in zip(sizes, _per_axis(shapes.attributes["dilation"], of.dims, 1))] if grows else [0] * of.dims
        lo, hi = of.lower[1 : 1 + of.dims], of.upper[1 : 1 + of.dims]
        if grows:
            lower, upper = [x - r for x, r in zip(lo, reach)], [x + r for x, r in zip(hi, reach)]
        else:
            lower, upper = [factor * x for x in lo], [factor * x + factor - 1 for x in hi]
        items = of.max_rows * (each + grows)
        found = dict(dims=of.dims, max_rows=items, max_items=items, lower=[*of.lower[:1], *lower], upper=[*of.upper[:1], *upper])
    elif op.name == "voxels":
        found = dict(dims=n("D"), max_points=n("N"), max_voxels=n("N"), points=shapes.attributes["points_of"], most_points=max(1, shapes.attributes["most_points"]))
    elif op.name == "devoxels":
        corners = 1 << n("D") if shapes.attributes["interpolation"] else 1
        found = dict(dims=n("D"), max_points=n("N"), max_rows=plans["coords"].max_rows, corners=corners)
    elif op.name == "kernel_map":
        of, out = plans["in"], plans.get("out", plans["in"])
        dims = of.dims
        taps = math.prod(_per_axis(shapes.attributes["size"], dims, 1))
        found = dict(max_in=of.max_rows, max_out=out.max_rows, max_pairs=taps * min(of.max_rows, out.max_rows), dims=dims, num_taps=taps)
        found.update({k: _per_axis(shapes.attributes[k], dims, d) for k, d in (("size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))})
    return found


def describe(op: Operator, arrays: dict, plans: dict[str, Plan], attributes: dict, asked: dict) -> tuple[int, ...]:
    """The description of a plan with capacities."""
    kind = kinds[op.outputs[0].type]
    for name in asked:
        if name not in kind.fields:
            raise TypeError(f"{op.name}: {name} is no argument, and no field of a plan of kind {kind.name}")
    shapes = Shapes(op, arrays, {n: p.described for n, p in plans.items()}, attributes)
    if op.outputs[0].may_be or kind.parents:
        fields = list(_fields_from_plans(op, plans, attributes))
        given = asked
    else:
        fields = [0] * kind.num_fields
        given = {**{n: v for n, v in attributes.items() if n in kind.fields}, **_capacities(op, shapes, plans, asked)}
        given.update({n: attributes[n] for n in ("lower", "upper") if attributes.get(n)})
        given.update(asked)
        if "lower" in kind.fields and given.get("lower") is None:
            raise TypeError(f"{op.name}: lower and upper are not given, expected the box of all coordinates where sizes are capacities")
    for name, v in given.items():
        at, sizes, f64 = kind.fields[name]
        v = list(v) if isinstance(v, (list, tuple)) else [] if v is None else [v]
        if sizes and len(v) == 1:  # one for all axes
            v = v * given.get("dims", sizes[0])
        for i, x in enumerate(v):
            fields[at + i] = struct.unpack("q", struct.pack("d", x))[0] if f64 else int(x)
    return _tree(kind, fields, plans)


def _tree(kind, fields, plans: dict[str, Plan]) -> tuple[int, ...]:
    ints = [kind.number, kind.version, *fields]
    for parent in kind.parents:
        of = parent.split(":")[1]
        found = next((p.ints for p in plans.values() if p.kind == of), None)
        ints += found if found is not None else [0]
    return tuple(ints)


def _fields_from_plans(op: Operator, plans: dict[str, Plan], attributes: dict) -> tuple[int, ...]:
    """Fields that follow from those of other plans: of a plan that is made on empty ones."""
    with jax.ensure_compile_time_eval():
        empty = {n: Plan(p.ints, jnp.zeros(p.block.shape, jnp.int32)) for n, p in plans.items()}
        handle = exact(op, {}, empty, attributes)
        return _boxed.fields_of(handle.address)


def exact(op: Operator, arrays: dict, plans: dict[str, Plan], attributes: dict) -> Handle:
    """The plan of exact sizes; waits for the device."""
    there = {**arrays, **blocks_of(plans)}
    jax.block_until_ready(list(there.values()))
    inputs = {n: _memory(x) for n, x in there.items()}
    inputs.update({n: p.handle.address for n, p in plans.items() if p.handle is not None})
    ints = {n: p.ints for n, p in plans.items() if p.handle is None}
    kind, number = _device_of([]) if not inputs else (_boxed.HOST, 0)
    where = number if kind == _boxed.CUDA else -1
    address = _boxed.make_plan(op, inputs, ints, {a.name: attributes[a.name] for a in op.attributes}, where)
    return Handle(address, tuple(p.handle for p in plans.values() if p.handle is not None), bool(op.outputs[0].may_be))


# ---- Making -----------------------------------------------------------------------------------------


def counts_of(op: Operator) -> list:
    """Inputs that say how many rows count, where a block is filled."""
    return [a for a in op.inputs if a.kind == TENSOR and a.optional and a.needs == op.outputs[0].name]


def make(op: Operator, arrays: dict, plans: dict[str, Plan], attributes: dict, asked: dict) -> Plan:
    """arrays, plans: those that are given, by name; attributes: all of them; asked: capacities."""
    there = [*arrays.values(), *blocks_of(plans).values()]
    of_capacities = bool(asked) or any(is_traced(x) for x in there) or any(a.name in arrays for a in counts_of(op))
    if of_capacities:
        if any(p.handle is not None for p in plans.values()):
            raise NotImplementedError(f"{op.name}: a plan that is no block is given, expected blocks where sizes are capacities")
        return _fill(op, arrays, plans, attributes, describe(op, arrays, plans, attributes, asked))
    kind = kinds[op.outputs[0].type]
    handle = exact(op, arrays, plans, attributes)
    fields = list(_boxed.fields_of(handle.address))
    is_static = any(p.handle is not None for p in plans.values()) or any(a.dims != ("1",) for a in counts_of(op))
    if not is_static:
        if op.name in ("coords_down", "coords_up"):  # refilling takes all candidates at once
            fields[kind.fields["max_items"][0]] = plans["in"].max_rows * _num_candidates(op, plans["in"].dims, attributes)
        try:
            return jax.block_until_ready(_fill(op, arrays, plans, attributes, _tree(kind, fields, plans)))
        except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError):
            if plans:  # a handle would outlive those of the blocks
                raise
    return Plan((kind.number, kind.version, *fields), None, handle)


def _fill(op: Operator, arrays: dict, plans: dict[str, Plan], attributes: dict, ints: tuple[int, ...]) -> Plan:
    """The plan of this description, in a block."""
    kind, out = kinds[op.outputs[0].type], op.outputs[0]
    size = _boxed.block_bytes(ints, *_device_of([*arrays.values(), *blocks_of(plans).values()]))
    arrays = dict(arrays)
    for a in counts_of(op):
        if a.name not in arrays and arrays:
            arrays[a.name] = jnp.full((1,), next(iter(arrays.values())).shape[0], jnp.int32)
    # what the description says is left to it
    said = {a.name for a in op.attributes if a.name in kind.fields and a.has_default and not out.may_be}
    values = [a.default if a.name in said else attributes[a.name] for a in op.attributes]
    values = [a.values.index(v) if a.kind == ENUM and isinstance(v, str) else v for a, v in zip(op.attributes, values)]
    described = {**{n: p.described for n, p in plans.items()}, out.name: Described(ints, 0)}
    block = {out.name: jax.ShapeDtypeStruct((max(-(-size // BLOCK_ELEMENT), 1),), jnp.int32)}
    (filled,) = call(op, {**arrays, **blocks_of(plans)}, described, block, attribute_values(op, values), {})
    return Plan(ints, filled)
