# SPDX-License-Identifier: Apache-2.0
"""Every row of the list: the Python call against the boxed one, with and without what is optional.

A call is drawn from its row; what a row cannot say (cameras, say) stands in VALUES. Both calls must
give the same bits, or the same error; without optional arguments they must succeed.
"""
import inspect
from pathlib import Path

import pytest
import torch
from conftest import grid_rows

import spops
import spops.functional as F
from spops import _device, _generate, _library, _made, _rows
from spops._rows import COMM, FLOATS, INTS, PLAN, TENSOR, operators, python_of
from spops.comm import Comm, Group

SIZES = {"N": 24, "M": 24, "C": 8, "Ci": 8, "Co": 8, "H": 16, "S": 2, "K": 3, "P": 2, "Q": 24, "D": 4, "B": 5, "I": 4, "W": 2, "U": 1}
DTYPES = {"narrow": "f8e4m3", "float": "f32", "real": "f32"}
EYE = [1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
BEV = dict(num_batches=1, num_cameras=1, num_depths=4, feature_height=2, feature_width=3, num_cells_x=4, num_cells_y=4, num_cells_z=1)
VALUES = {
    "segments": dict(num_segments=6, num_rows=24, num_weights=24, gradients="all"),
    "segments_offsets": dict(num_rows=24, num_weights=24),
    "triplets": dict(num_out=24, num_in=24, num_matrices=3, backward=True),
    "sparseconv_plan": dict(backward=True),
    "pointconv_plan": dict(backward=True),
    "pool_plan": dict(gradients="all"),
    "pool_global_plan": dict(num_batches=2),
    "pool_buckets_plan": dict(sub_rows=2),
    "coords_down": dict(size=2, stride=2),
    "coords_up": dict(size=2, stride=2),
    "kernel_map": dict(size=3),
    "voxels": dict(size_m=0.25, points_of="first", most_points=3),
    "coords_grown": dict(size=3),
    "devoxels": dict(size_m=0.25),
    **dict.fromkeys(("dense", "dense_backward", "dense_rows", "dense_rows_backward"), dict(num_batches=2, size0=4, size1=5, size2=3, origin=[1, 0, 1])),
    "pyramid": dict(num_levels=2),
    "neighbors": dict(radius_m=0.4, taps=3, tap_size_m=0.25),
    "nearest": dict(count=2),
    "point_level": dict(size_m=0.5),
    "interpolation": dict(count=3),
    "point_pyramid": dict(num_levels=2, tap_size_m=0.2),
    "buckets": dict(bucket_rows=8),
    "patches": dict(num_rows=24),
    "patches_order": dict(patch_rows=8),
    **dict.fromkeys(("attention", "attention_backward"), dict(heads=2, kv_heads=1, rotary_axis_dim=2)),
    "batchnorm_gradient": dict(total_rows=30),
    "partition": dict(num_chunks=1),  # rows in any order are by chunk
    "chunk_sums_plan": dict(max_values=32),
    "segment_topk": dict(k=3),
    "segment_topk_backward": dict(k=3),
    "bev_plan": dict(**BEV, input_height=16, input_width=24, depth_start_m=1.0, depth_step_m=1.0, grid_lower_m=[-8.0, -8, -8],
                     cell_size_m=[4.0, 4, 16], intrinsics=[10.0, 0, 12, 0, 10, 8, 0, 0, 1], camera_to_ego=EYE,
                     image_to_input=[1.0, 0, 0, 0, 1, 0], backward=True),
    "bev_plan_ranks": dict(**BEV, ranks_depth=torch.arange(24, dtype=torch.int32), ranks_feat=torch.arange(24, dtype=torch.int32) % 6,
                           ranks_bev=torch.arange(4, dtype=torch.int32).repeat_interleave(6),
                           interval_starts=torch.arange(0, 24, 6, dtype=torch.int32),
                           interval_lengths=torch.full((4,), 6, dtype=torch.int32), backward=True),
    **dict.fromkeys(("quantize", "quantize_weights"), dict(dtype=torch.float8_e4m3fn)),
    **dict.fromkeys(("sparseconv_quantized", "linear_quantized"), dict(dtype=torch.float32)),
    "dequantize": dict(dtype=torch.float32),
}  # fmt: skip
LISTS = {"patches": {"Q": 24, "K": 24}, "batchnorm_merge": {"C": 16}, **dict.fromkeys(("attention", "attention_backward"), {"B": 9})}  # sizes of a row's own


def plan_of(kind, row):
    """A plan of a kind: made by the first row of the list that makes it."""
    maker = next(o for o in operators.values() if o.makes_plan and o.outputs[0].type == kind)
    return getattr(F, maker.name)(**drawn(maker, False))


def dtype_of(op, a):
    word = a.type.removeprefix("sum(").removesuffix(")").split("|")[0]
    while word in op.variables:
        word = op.variables[word].split("|")[0]
    return _made.dtypes[DTYPES.get(word, word)]


def drawn(op, with_optional):
    """Arguments of the Python function, by name."""
    values = {n: v.to(torch.get_default_device()) if isinstance(v, torch.Tensor) else v for n, v in VALUES.get(op.name, {}).items()}
    if _generate.Row(op).is_placeless:
        values["device"] = torch.get_default_device()
    sizes = {**SIZES, **LISTS.get(op.name, {})}
    plans = {}
    for a in op.inputs:
        if a.kind == COMM and (with_optional or not a.optional):
            values[a.name] = Comm.of_threads(Group(1), 0, torch.get_default_device())  # of one rank
        if a.kind == PLAN and (with_optional or not a.optional):
            n = _generate.python_name(a.name)
            plans[a.name] = values[n] = plan_of(a.type, op)
    attributes = {a.name: values.get(_generate.python_name(a.name), a.default) for a in op.attributes}
    values_of = {a.name: a.values for a in op.attributes}
    attributes = {n: values_of[n].index(v) if isinstance(v, str) and v in values_of[n] else 0 if isinstance(v, str) else v for n, v in attributes.items()}

    def number(text):
        def name(n):
            if "." not in n:
                return str(int(attributes[n] if n in attributes else sizes[n] if n in sizes else {"max": 0}.get(n, n)))
            owner, f = n.split(".")
            return str(getattr(plans[owner], f))

        return int(eval(python_of(text, name))) if text else None

    g, where = torch.Generator("cpu").manual_seed(len(op.name)), torch.get_default_device()
    for a in op.inputs:
        n = _generate.python_name(a.name)
        if a.kind != TENSOR or n in values or (a.optional and not with_optional):
            continue
        shape, dtype = [number(d) for d in a.dims], dtype_of(op, a)
        if a.name == "rows" and op.name == "coords":
            values[n] = grid_rows(shape[0], (5, 5, 5))
        elif a.first == "" and a.last != "" and dtype is torch.int32:  # offsets
            values[n] = torch.linspace(0, number(a.last), shape[0]).to(dtype)
        elif dtype is torch.int32 or dtype is torch.uint8:
            last = number(a.last)
            values[n] = torch.randint(number(a.first) or 0, (3 if last is None else last) + 1, shape, generator=g, device="cpu").to(where, dtype)
            if a.name == "places":  # of each column once, as sorting gives them
                values[n] = torch.rand(shape, generator=g, device="cpu").argsort(0).to(where, dtype)
            if a.name in ("query_rows", "key_rows", "order"):
                values[n] = torch.randperm(shape[0], generator=g, device="cpu").to(where, dtype)
        else:
            values[n] = torch.rand(shape, generator=g, device="cpu").to(where, dtype)
    return values


def boxed(op, values, results):
    """The same call of the boxed entry: outputs given, absent arguments told by their bits."""
    args, present, bit = [], 0, 0
    for a in (*op.inputs, *op.outputs):
        if a in op.outputs:
            v = None if a.kind == PLAN else results.get(a.name)
        else:
            v = values.get(_generate.python_name(a.name))
            v = v.handle if isinstance(v, spops.Plan) else v._open() if isinstance(v, Comm) else v
        if a.optional:
            present |= (v is not None) << bit
            bit += 1
            if v is None:
                continue
        args.append(v)
    args += [None] * sum(a.kind == PLAN for a in (*op.inputs, *op.outputs))
    for a in op.attributes:
        v = values.get(_generate.python_name(a.name), a.default)
        args.append(_made._ints(v) if a.kind == INTS else _made._floats(v) if a.kind == FLOATS else v)
    if op.num_optional:
        args.append(present)
    return _device.call_on(torch.get_default_device(), getattr(_made.module, op.name), *args)


def outcome(f):
    try:
        return f(), None
    except (ValueError, NotImplementedError) as e:
        return None, str(e)


@pytest.mark.parametrize("with_optional", [False, True])
@pytest.mark.parametrize("name", operators)
def test_row(name, with_optional):
    op = operators[name]
    values = drawn(op, with_optional)
    given = [o for o in op.outputs if o.optional and o.updated and not o.name.startswith("grad_")]
    wanted = {}
    if not op.makes_plan:
        wanted = {_generate.python_name(o.name): True for o in op.outputs if o.optional and o not in given and (with_optional or o.name.startswith("grad_"))}
        if with_optional:
            wanted.update({o.name: torch.ones(8) for o in given})
    mine, error = outcome(lambda: getattr(F, name)(**values, **wanted))
    if not with_optional:
        assert error is None, error
    if op.makes_plan:
        handle, theirs = outcome(lambda: boxed(op, values, {}))
        assert error == theirs
        if error is None:
            other = spops.Plan(handle.value, mine._owner.keeps, bool(op.outputs[0].may_be), mine.device)
            assert mine.kind == op.outputs[0].type and mine.fields == other.fields
            assert len(mine.fields) == _rows.kinds[mine.kind].num_fields
        return
    if error is not None:
        outs = {o.name: torch.zeros(1) for o in op.outputs}
        _, theirs = outcome(lambda: boxed(op, values, outs))
        assert theirs is not None
        return
    mine = mine if isinstance(mine, tuple) else (mine,)
    missing = lambda o: o.needs and any(a.name == o.needs for a in op.inputs) and values.get(_generate.python_name(o.needs)) is None
    names = [o for o in op.outputs if not o.optional or wanted.get(_generate.python_name(o.name)) is not None and not missing(o)]
    if _generate.Row(op).all_optional and not wanted:
        names = list(op.outputs)
    assert len(mine) == len(names)
    outs = {o.name: torch.ones(8) if o in given else torch.zeros_like(v) for o, v in zip(names, mine)}
    boxed(op, values, outs)
    for o, v in zip(names, mine):
        same = outs[o.name]
        if v.dtype.itemsize == 1:
            v, same = v.view(torch.uint8), same.view(torch.uint8)
        assert torch.equal(v, same), o.name


def operator_arguments(op, values, wanted):
    """Of torch.ops.spops.NAME, from those of the Python function."""
    row, args = _generate.Row(op), []
    for a in op.inputs:
        v = values.get(_generate.python_name(a.name))
        args += [None if v is None else v.token, [] if v is None else list(v.ints)] if a.kind == PLAN else [v]
    for o in op.outputs:
        if o.optional:
            given = o.updated and not o.name.startswith("grad_")
            there = not (o.needs and any(a.name == o.needs for a in op.inputs) and values.get(_generate.python_name(o.needs)) is None)
            args.append(None if given else wanted and there)
    for a in (*op.attributes, *row.extra):
        v = values.get(_generate.python_name(a.name), a.default)
        args.append(a.values.index(v) if isinstance(v, str) else v)
    if row.free:
        args.append(values.get("dtype"))
    if row.first is None:
        args.append(torch.get_default_device())
    return tuple(args)


@pytest.mark.parametrize("name", [n for n, op in operators.items() if not op.makes_plan])
def test_operator_of_torch(name):
    """Its schema, its fake and its gradient's registration: torch's opcheck."""
    op, f = operators[name], getattr(torch.ops.spops, name).default
    all_optional = _generate.Row(op).all_optional
    for wanted in (False, True):
        values = drawn(op, False)
        if wanted and name == "segreduce":
            values["reduce"] = "max"  # has a winning term
        args = operator_arguments(op, values, wanted or all_optional)
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        if any(isinstance(a, torch.Tensor) and a.dtype is torch.float8_e4m3fn for a in args):
            checks = checks[1:]  # torch's check of the schema computes with inputs, which it cannot in 8 bits
        args = [a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() and op.gradient else a for a in args]
        _, error = outcome(lambda: f(*args))
        assert wanted or error is None, error
        if error is None:
            torch.library.opcheck(f, args, test_utils=checks)


def test_every_row_has_its_functions():
    assert set(F.__all__) == set(operators)
    for name, op in operators.items():
        f = getattr(F, name)
        assert op.doc in f.__doc__ and op.function in f.__doc__
        if not op.makes_plan:
            assert hasattr(torch.ops.spops, name)
        if op.gradient:
            assert hasattr(_made, f"{name}_grad")
        assert [p for p in inspect.signature(getattr(f, "__wrapped__", f)).parameters]


def test_stub_is_of_the_list():
    from spops import _stubs

    path = Path(spops.__file__).with_name("functional.pyi")
    assert path.read_text() == _stubs.text(), "python -m spops._stubs writes it again"
    assert path.with_name("nn.pyi").read_text() == _stubs.nn_text(), "python -m spops._stubs writes it again"


def test_version_is_the_librarys():
    assert spops.__version__ == _library.c.spops_version().decode()
