# SPDX-License-Identifier: Apache-2.0
"""ONNX models whose nodes are operators of the library, for ONNX Runtime and TensorRT (docs/onnxruntime.md).

Needs the packages onnx and jax: shapes, dtypes and descriptions of plans are those of spops.jax.
"""
from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import onnx
from onnx import helper

from . import _library, jax as sj
from ._jax_calls import dtypes
from ._rows import ENUM, FLAGS, FLOAT, FLOATS, INTS, PLAN, Argument, Operator, kinds, of_tensors as operators
from ._signature import all_optional, is_given, python_name

DOMAIN = "spops"


def custom_ops_library() -> str:
    """What ONNX Runtime loads: ``options.register_custom_ops_library(spops.onnx.custom_ops_library())``.

    SPOPS_ONNXRUNTIME_LIBRARY names it, else it is beside the library that is loaded, or in the package."""
    name = "libspops_onnxruntime.so"
    named = os.environ.get("SPOPS_ONNXRUNTIME_LIBRARY")
    for path in [named] if named else [Path(_library.path).resolve().parent / name, Path(__file__).parent / "lib" / name]:
        if Path(path).is_file():
            return str(path)
    raise FileNotFoundError(f"spops.onnx: there is no {named or name}; SPOPS_ONNXRUNTIME_LIBRARY may name it")


class Value:
    """A tensor of a model: its name, shape and dtype; of a plan also what it is."""

    def __init__(self, name: str, of):
        self.name, self.of = name, of  # a ShapeDtypeStruct, or a spops.jax.Plan of one
        self.array = of.block if isinstance(of, sj.Plan) else of

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.array.dtype)

    @property
    def ints(self) -> tuple[int, ...]:
        """The description of a plan."""
        return self.of.ints

    def __repr__(self) -> str:
        return f"<Value {self.name}: {self.of!r}>"


def _element(dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _number(a: Argument, v):
    if a.kind in (FLOAT, FLOATS):  # ONNX's floats have 32 bits: a tensor has 64
        return onnx.numpy_helper.from_array(np.atleast_1d(np.asarray(v, np.float64)))
    if a.kind == INTS:
        return [int(x) for x in np.atleast_1d(v)]
    return v if a.kind in (ENUM, FLAGS) and isinstance(v, str) else int(v)


def _without_end(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names.pop()
    return names


def _is_own(op: Operator, a: Argument) -> bool:
    """Whether a node says this attribute; what the description of a plan says is left to it, where it can be left out."""
    return not op.makes_plan or not a.has_default or op.outputs[0].may_be != "" or a.name not in kinds[op.outputs[0].type].fields


def _is_wanted(op: Operator, o: Argument, values: dict, given: dict) -> bool:
    """Whether the call gives this output, as functions of spops.jax decide it."""
    if not o.optional or is_given(o):
        return not o.optional or o.name in values
    needed = any(a.name == o.needs for a in op.inputs)
    return bool(given.get(python_name(o.name), all_optional(op))) and (not needed or o.needs in values)


def _plugin(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node as TensorRT's parser takes plugins."""
    op = operators[node.op_type]
    names = [a.name for a in op.inputs] + [o.name for o in op.outputs if o.updated]
    inputs = [*zip(names, node.input)]
    outputs = [*zip([o.name for o in op.outputs], node.output)]
    optional = {a.name for a in (*op.inputs, *op.outputs) if a.optional}
    present = [n for n, given in (*inputs[: len(op.inputs)], *outputs) if given and n in optional]
    begin = [n for n, given in inputs[len(op.inputs) :] if given]
    attributes = dict(plugin_namespace=DOMAIN, plugin_version="1", present=" ".join(present), begin=" ".join(begin))
    for a in node.attribute:
        v = helper.get_attribute_value(a)
        attributes[a.name] = onnx.numpy_helper.to_array(v).tolist() if isinstance(v, onnx.TensorProto) else v
    given = [n for _, n in inputs if n], [n for _, n in outputs if n]
    return helper.make_node(op.name, *given, domain=DOMAIN, name=given[1][0], **attributes)


class Model:
    """A model in the making.

    Every operator of the list is a method under its name: ``model.segreduce(x, plan, reduce="max")``. It
    takes values of the model, arrays, which become constants, and attributes, as the function of
    ``spops.jax`` with this name does inside of ``jit``: sizes of plans are capacities. It gives a value, or a
    tuple of them. ``node`` adds a node of ONNX's own.
    """

    def __init__(self, name: str = "spops"):
        self.name, self.nodes, self.inputs, self.outputs, self.constants = name, [], [], [], []
        self.shapes = []  # of tensors between nodes, which spops/model.h asks for
        self._count = 0

    def _name(self, hint: str) -> str:
        self._count += 1
        return f"{hint}_{self._count}"

    def input(self, name: str, dtype, shape) -> Value:
        """An input of the model."""
        self.inputs.append(helper.make_tensor_value_info(name, _element(dtype), list(shape)))
        return Value(name, jax.ShapeDtypeStruct(tuple(shape), dtype))

    def plan(self, name: str, plan: sj.Plan) -> Value:
        """An input of the model that is a plan's block: of a plan of spops.jax with this description."""
        if plan.block is None:
            raise TypeError(f"{name} is a plan of kind {plan.kind} that is no block, which no node takes")
        value = self.input(name, np.int32, plan.block.shape)
        value.of = sj.Plan(plan.ints, value.array)
        return value

    def output(self, value: Value, name: str | None = None) -> None:
        """Make a value an output of the model."""
        if name is not None:
            self.nodes.append(helper.make_node("Identity", [value.name], [name]))
        info = helper.make_tensor_value_info(name or value.name, _element(value.dtype), list(value.shape))
        self.outputs.append(info)

    def constant(self, array, hint: str = "constant") -> Value:
        array = np.asarray(array)
        name = self._name(hint)
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return Value(name, jax.ShapeDtypeStruct(array.shape, array.dtype))

    def node(self, op_type: str, *inputs, dtype=None, shape=None, domain: str = "", **attributes) -> Value:
        """A node of another domain with one output, of the first input's shape and dtype unless they are given."""
        values = [v if isinstance(v, Value) else self.constant(v) for v in inputs]
        name = self._name(op_type)
        self.nodes.append(helper.make_node(op_type, [v.name for v in values], [name], domain=domain, **attributes))
        return Value(name, jax.ShapeDtypeStruct(tuple(shape or values[0].shape), dtype or values[0].dtype))

    def __getattr__(self, name: str):
        op = operators.get(name)
        if op is None:
            raise AttributeError(f"spops.onnx.Model: there is no operator {name}")
        return lambda *args, **keywords: self._call(op, args, keywords)

    def _call(self, op: Operator, args: tuple, keywords: dict):
        function = getattr(sj, op.name)
        names = [p[0] for p in sj.parameters(op)]
        given = dict(zip(names, args)) | keywords
        tensors = {a.name: given.pop(python_name(a.name)) for a in op.inputs if given.get(python_name(a.name)) is not None}
        begins = {o.name: given.pop(python_name(o.name)) for o in op.outputs if is_given(o) and isinstance(given.get(python_name(o.name)), Value)}
        values = {n: v if isinstance(v, Value) else self.constant(v, n) for n, v in {**tensors, **begins}.items()}
        keys = list(values)
        made = jax.eval_shape(lambda *of: function(**{python_name(n): x for n, x in zip(keys, of)}, **given), *(values[n].of for n in keys))
        return self._add(op, values, given, made)

    def _add(self, op: Operator, values: dict, given: dict, made):
        made = made if isinstance(made, tuple) and not isinstance(made, sj.Plan) else (made,)
        outs = {o.name: Value(self._name(o.name), x) for o, x in zip((o for o in op.outputs if _is_wanted(op, o, values, given)), made)}
        for a in op.inputs:  # where a block is filled, how many rows count is said
            if op.makes_plan and a.kind != PLAN and a.needs == op.outputs[0].name and a.name not in values:
                rows = next(v for v in values.values() if not isinstance(v.of, sj.Plan)).shape[0]
                values[a.name] = self.constant(np.array([rows], np.int32), a.name)
        described = {n: v for n, v in {**values, **outs}.items() if isinstance(v.of, sj.Plan)}
        attributes = {f"{n}_ints": list(v.ints) for n, v in described.items()}
        attributes |= {a.name: _number(a, given[a.name]) for a in op.attributes if given.get(a.name) is not None and _is_own(op, a)}
        if given.get("dtype") is not None:
            attributes["output_dtype"] = next(n for n, d in dtypes.items() if np.dtype(d) == np.dtype(given["dtype"]))
        names = [a.name for a in op.inputs] + [o.name for o in op.outputs if o.updated]
        inputs = _without_end([values[n].name if n in values else "" for n in names])
        outputs = _without_end([outs[o.name].name if o.name in outs else "" for o in op.outputs])
        self.nodes.append(helper.make_node(op.name, inputs, outputs, domain=DOMAIN, **attributes))
        self.shapes += [helper.make_tensor_value_info(v.name, _element(v.dtype), list(v.shape)) for v in outs.values() if not isinstance(v.of, sj.Plan)]
        return tuple(outs.values()) if len(outs) > 1 else next(iter(outs.values()))

    def proto(self, tensorrt: bool = False) -> onnx.ModelProto:
        """The model; onnx.save writes it to a file.

        tensorrt: for TensorRT's parser, which takes plugins by attributes and knows no absent inputs."""
        named = {o.name for o in self.outputs}
        shapes = [v for v in self.shapes if v.name not in named]
        nodes = [_plugin(n) if tensorrt and n.domain == DOMAIN else n for n in self.nodes]
        graph = helper.make_graph(nodes, self.name, self.inputs, self.outputs, self.constants, value_info=shapes)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)], ir_version=9)
