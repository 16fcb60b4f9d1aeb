# SPDX-License-Identifier: Apache-2.0
"""Every operator in all four frameworks: torch, JAX, ONNX Runtime, TensorRT, with names, dtypes and shapes that agree.

Plugins of TensorRT are driven through tests/bindings/drive_tensorrt.h, in host memory where the library has no CUDA.
SPOPS_TENSORRT_RUNTIME names a libnvinfer_lean.so or libnvinfer.so whose registry then loads them.
"""
import ctypes as c
import os
from pathlib import Path

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
from drawn_node import drawn_node  # noqa: E402
from test_jax import bits, platform  # noqa: E402, F401

import spops.functional as F  # noqa: E402
import spops.jax as sj  # noqa: E402
from spops import _library, onnx as so  # noqa: E402
from spops._rows import TENSOR, of_tensors as operators  # noqa: E402

FOLDER = Path(os.environ.get("SPOPS_LIBRARY", "")).parent
DRIVE = os.environ.get("SPOPS_TENSORRT_DRIVE") or str(FOLDER / "libspops_tensorrt_drive.so")
PLUGINS = os.environ.get("SPOPS_TENSORRT_PLUGINS") or str(FOLDER / "libspops_tensorrt.so")
DTYPES = ["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2", "float4", "int8", "int32", "int64", "uint8"]
I64, F64, TEXT = 1, 3, 4  # of spops_node_data


class Tensor(c.Structure):
    _fields_ = [("dtype", c.c_int32), ("num_dims", c.c_int32), ("dims", c.c_int64 * 8), ("data", c.c_void_p)]


class Field(c.Structure):
    _fields_ = [("name", c.c_char_p), ("type", c.c_int32), ("length", c.c_int32), ("data", c.c_void_p)]


@pytest.fixture(scope="module")
def drive():
    if not Path(DRIVE).exists():
        pytest.skip(f"no {DRIVE}: built without TensorRT's headers")
    d = c.CDLL(DRIVE)
    d.drive_creator.restype = d.drive_error.restype = c.c_char_p
    d.drive_create.restype, d.drive_workspace.restype = c.c_void_p, c.c_size_t
    d.num = d.drive_open(PLUGINS.encode(), os.environ.get("SPOPS_TENSORRT_RUNTIME", "").encode())
    assert d.num > 0, d.drive_error()
    yield d


def tensor(x):
    t = Tensor(DTYPES.index(np.dtype(x.dtype).name), len(x.shape))
    t.dims[: len(x.shape)] = x.shape
    t.data = x.ctypes.data if isinstance(x, np.ndarray) else None
    return t


def tensors(xs):
    return (Tensor * len(xs))(*map(tensor, xs))


def fields_of(node, present, begins):
    """A node's attributes as the fields of a plugin."""
    keep, out = [], []

    def add(name, type, data, length):
        keep.append(data)
        out.append(Field(name.encode(), type, length, c.cast(data, c.c_void_p)))

    for a in node.attribute:
        v = onnx.helper.get_attribute_value(a)
        if isinstance(v, bytes):
            add(a.name, TEXT, c.c_char_p(v), len(v))
        elif isinstance(v, onnx.TensorProto):
            v = onnx.numpy_helper.to_array(v)
            add(a.name, F64, (c.c_double * v.size)(*v.reshape(-1)), v.size)
        else:
            v = list(np.atleast_1d(v))
            add(a.name, I64, (c.c_int64 * len(v))(*map(int, v)), len(v))
    for name, names in (("present", present), ("begin", begins)):
        add(name, TEXT, c.c_char_p(" ".join(names).encode()), len(" ".join(names)))
    return (Field * len(out))(*out), keep


def test_every_operator_is_registered_everywhere(device, drive):
    creators = [drive.drive_creator(i, None).decode() for i in range(drive.num)]
    assert sorted(creators) == sorted(operators)
    assert set(operators) == set(sj.__all__) - {"Level", "Plan", "levels"} < set(F.__all__)
    for name, op in operators.items():
        assert op.makes_plan or hasattr(torch.ops.spops, name)


@pytest.mark.parametrize("name", operators)
def test_onnxruntime_knows_it(name, device):
    """A node of every operator is no unknown node, whatever else is wrong with it."""
    pytest.importorskip("onnxruntime")
    from test_onnxruntime import session

    m, op = so.Model(), operators[name]
    for a in op.inputs:
        m.input(a.name, np.int32 if "i32" in a.type or a.kind != TENSOR else np.float32, (4, 4)[: len(a.dims) or 1])
    m.nodes.append(onnx.helper.make_node(name, [a.name for a in op.inputs], [f"out_{o.name}" for o in op.outputs], domain="spops"))
    m.outputs.append(onnx.helper.make_empty_tensor_value_info(f"out_{op.outputs[0].name}"))
    try:
        session(m, device)
    except Exception as e:
        assert "not a registered function/op" not in str(e)
    unknown = onnx.helper.make_node(name + "_", [], ["none"], domain="spops")
    m.nodes[-1].CopyFrom(unknown)
    m.outputs[0].name = "none"
    with pytest.raises(Exception, match="not a registered function/op"):
        session(m, device)


@pytest.mark.parametrize("with_optional", [False, True])
@pytest.mark.parametrize("name", operators if Path(DRIVE).exists() else ["no plugins"])
def test_row(name, with_optional, device, drive):
    """A plugin has the dtypes and shapes that spops.jax, and so torch and ONNX Runtime, have; on the CPU the bits too."""
    op = operators[name]
    m, feeds, expected = drawn_node(name, with_optional)
    feeds |= {p.name: onnx.numpy_helper.to_array(p) for p in m.constants}
    node = next(n for n in m.nodes if n.domain == "spops")
    row_inputs = list(node.input) + [""] * (len(op.inputs) - len(node.input))
    present = [a.name for a, given in zip(op.inputs, row_inputs) if a.optional and given]
    outs = list(node.output) + [""] * (len(op.outputs) - len(node.output))
    present += [o.name for o, given in zip(op.outputs, outs) if o.optional and given]
    updated = [o.name for o in op.outputs if o.updated]
    begins = [n for n, given in zip(updated, row_inputs[len(op.inputs) :]) if given]
    fields, keep = fields_of(node, present, begins)
    plugin = drive.drive_create(name.encode(), fields, len(fields))
    assert plugin, drive.drive_error()
    plugin = c.c_void_p(plugin)
    arrays = [np.ascontiguousarray(feeds[n]) for n in row_inputs if n]
    expected = expected if isinstance(expected, tuple) and not isinstance(expected, sj.Plan) else (expected,)
    like = [x.block if isinstance(x, sj.Plan) else x for x in expected]
    ins, results = tensors(arrays), [np.zeros(x.shape, x.dtype) for x in like]
    for symbolic in (0, 1):
        found = (Tensor * len(like))()
        assert drive.drive_shapes(plugin, ins, len(arrays), found, len(like), symbolic) == 0, drive.drive_error()
        for t, x in zip(found, like):
            assert DTYPES[t.dtype] == np.dtype(x.dtype).name and tuple(t.dims[: t.num_dims]) == x.shape
    outs = tensors(results)
    assert drive.drive_supports(plugin, ins, len(arrays), outs, len(like), 0) == 1
    if not _library.c.spops_has_cuda():
        bytes = drive.drive_workspace(plugin, ins, len(arrays), outs, len(like))
        workspace = np.zeros(bytes + 64, np.uint8)
        at = c.c_void_p(-(-workspace.ctypes.data // 64) * 64 if bytes else None)
        assert drive.drive_change(plugin, ins, len(arrays), outs, len(like)) == 0, drive.drive_error()
        assert drive.drive_enqueue(plugin, ins, len(arrays), outs, len(like), at, None) == 0, drive.drive_error()
        for a, b in zip(results, expected):
            if not isinstance(b, sj.Plan):
                np.testing.assert_array_equal(a.view(np.uint8), np.ascontiguousarray(bits(b)).view(np.uint8))
    drive.drive_destroy(plugin)


def test_the_parser_creates_every_plugin(device, drive):
    """By the ONNX parser of TensorRT-RTX, which needs no GPU. Its networks take no plugin layers: it ends the process after that."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    trt.get_plugin_registry().load_library(PLUGINS)
    made = 0
    for name in operators:
        try:
            model = drawn_node(name, True)[0].proto(tensorrt=True).SerializeToString()
        except pytest.skip.Exception:
            continue
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(into, 1)
            os.dup2(into, 2)
            logger = trt.Logger(trt.Logger.INFO)
            builder = trt.Builder(logger)
            network = builder.create_network(0)
            trt.OnnxParser(network, logger).parse(model)
            os._exit(0)
        os.close(into)
        with os.fdopen(out) as said:
            text = said.read()
        os.waitpid(child, 0)
        assert f"Successfully created plugin: {name}" in text, (name, text)
        made += 1
    assert made > 80
