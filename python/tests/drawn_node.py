# SPDX-License-Identifier: Apache-2.0
"""For tests of engines: what test_rows draws for a row, as a model of one node."""
import jax
import numpy as np
import pytest
from test_jax import of_row

import spops.jax as sj
from spops import _signature, onnx as so
from spops._rows import TENSOR, of_tensors as operators
from spops._signature import python_name


def node_of(op, values, wanted):
    """A model of one node, what it takes, and what the same call of spops.jax gives."""
    m, feeds, there = so.Model(op.name), {}, {}
    for a in op.inputs:
        v = values.get(python_name(a.name))
        if v is None:
            continue
        there[a.name] = m.plan(a.name, v) if isinstance(v, sj.Plan) else m.input(a.name, v.dtype, v.shape)
        feeds[a.name] = np.asarray(v.block if isinstance(v, sj.Plan) else v)
    for o in op.outputs:
        if o.name in wanted and _signature.is_given(o):
            there[o.name] = m.input(f"begin_{o.name}", wanted[o.name].dtype, wanted[o.name].shape)
            feeds[f"begin_{o.name}"] = np.asarray(wanted[o.name])
    expected = getattr(sj, op.name)(**values, **{python_name(n): x for n, x in wanted.items()})
    made = m._add(op, there, {**values, **wanted}, expected)
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        m.output(value, f"result_{i}")
    return m, feeds, expected


def has_block(x):
    return not isinstance(x, sj.Plan) or x.handle is None


# Rows that make no block: handles alone (include/spops/call.h).
NO_BLOCKS = {"segments_offsets", "kernel_map_inverse", "bev_plan_ranks"}


def drawn_node(name, with_optional):
    """A model of one node of this row, what it takes, and what spops.jax gives; skips the test where there is no such call."""
    op = operators[name]
    values = of_row(op, with_optional)
    if "dtype" in values:
        values["dtype"] = str(values["dtype"]).removeprefix("torch.")
    if any(str(getattr(v, "dtype", "")) in ("float64", "float8_e4m3fn") for v in values.values()) or "float8" in values.get("dtype", ""):
        pytest.skip("arrays that numpy does not have")
    wanted = {o.name: True for o in op.outputs if o.optional and not _signature.is_given(o) and (with_optional or o.name.startswith("grad_"))}
    wanted |= {o.name: jax.numpy.ones(8) for o in op.outputs if _signature.is_given(o) and with_optional}
    try:
        made = getattr(sj, name)(**values, **{python_name(n): x for n, x in wanted.items()})
    except (ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError):
        assert with_optional or name in NO_BLOCKS
        pytest.skip("not all that is optional can be there at once")
    if not all(map(has_block, [made, *values.values()])):
        assert name in NO_BLOCKS or not op.makes_plan or not has_block(made)
        pytest.skip("a plan that is no block")
    if op.makes_plan:
        for a in op.inputs:
            if a.kind == TENSOR and a.needs == op.outputs[0].name and a.dims == ("1",):
                values.pop(python_name(a.name), None)  # all count, as in the exact plan
    return node_of(op, values, wanted)
