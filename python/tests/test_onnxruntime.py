# SPDX-License-Identifier: Apache-2.0
"""Operators as nodes of ONNX models, run by ONNX Runtime: the bits of the same calls in Python."""
import re
from pathlib import Path

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from drawn_node import drawn_node  # noqa: E402
from onnx_network import check_network, network, same_network, scan  # noqa: E402
from test_jax import bits, platform  # noqa: E402, F401

import spops.functional as F  # noqa: E402
from spops import onnx as so  # noqa: E402
from spops._rows import of_tensors as operators  # noqa: E402

try:
    LIBRARY = so.custom_ops_library()
except FileNotFoundError as e:
    pytest.skip(f"{e}: built without SPOPS_ONNXRUNTIME", allow_module_level=True)
EP = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@pytest.fixture(autouse=True)
def on_provider(device):
    if EP[device.type] not in ort.get_available_providers():
        pytest.skip(f"this onnxruntime has no {EP[device.type]}")


def session(model: so.Model, device, path=None):
    options = ort.SessionOptions()
    options.register_custom_ops_library(LIBRARY)
    options.log_severity_level = 3
    proto = model.proto()
    if path is not None:
        onnx.save(proto, str(path))
    return ort.InferenceSession(str(path) if path else proto.SerializeToString(), options, providers=[EP[device.type]])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_network_from_a_file_has_the_bits_of_the_calls(device, tmp_path, dtype):
    model, weights = network(dtype, lambda m, y: m.node("Relu", y))
    s = session(model, device, tmp_path / "network.onnx")
    for n, seed in ((300, 1), (187, 2), (1, 3)):  # one session, scans of every size
        rows = scan(n, 300, seed)
        x = np.random.default_rng(seed).normal(size=(300, 8)).astype(dtype)
        names = ["pooled", "z", "places", "count"]
        found = s.run(names, {"rows": rows, "num_rows": np.array([n], np.int32), "x": x})
        check_network(dict(zip(names, found)), same_network(rows[:n], x[:n], weights, torch.relu, device))


def test_the_page_makes_a_model_that_runs(device, tmp_path, monkeypatch):
    page = Path(__file__).resolve().parents[2] / "docs/onnxruntime.md"
    if not page.is_file():
        pytest.skip("this is no checkout")
    block = next(b for b in re.findall(r"^```py\n(.*?)^```", page.read_text(), re.M | re.S) if "Model(" in b)
    monkeypatch.chdir(tmp_path)
    space = {}
    exec(compile(block, str(page), "exec"), space)
    rows, n = scan(150, 20000), np.array([100], np.int32)
    rows[:100] = np.pad(np.unique(rows[:150, 1:], axis=0)[-100:], ((0, 0), (1, 0)))
    x = np.random.default_rng(2).normal(size=(20000, 16)).astype(np.float16)
    (pooled,) = session(space["m"], device, tmp_path / "again.onnx").run(None, {"rows": rows, "num_rows": n, "x": x})
    sites = F.coords(torch.from_numpy(rows[:100]).to(device))
    conv = F.sparseconv_plan(F.kernel_map(sites, size=3), max_in_channels=32, max_out_channels=32)
    y = F.sparseconv(torch.from_numpy(x[:100]).to(device), torch.from_numpy(space["w"]).to(device), conv, activation="relu")
    expected = F.pool(y, F.pool_global_plan(sites, num_batches=1, max_cols=32), "max")
    assert (tmp_path / "encoder.onnx").stat().st_size > 1000
    np.testing.assert_array_equal(pooled, expected.cpu().numpy())


def test_optional_arguments_and_names_of_enumerators(device):
    m = so.Model()
    keys, x, w = m.input("keys", np.int32, (40,)), m.input("x", np.float32, (40, 6)), m.input("w", np.float32, (40, 1))
    plan = m.segments(keys, num_segments=7)
    m.output(m.segreduce(x, plan, reduce="max"), "largest")
    m.output(m.segreduce(x, plan, w=w, reduce=0), "sum")
    largest, arg = m.segreduce(x, plan, w=w, reduce="min", arg=True)
    m.output(largest, "least")
    m.output(arg, "arg")
    r = np.random.default_rng(3)
    feeds = {"keys": r.integers(0, 7, 40).astype(np.int32), "x": r.normal(size=(40, 6)).astype(np.float32), "w": r.random((40, 1)).astype(np.float32)}
    found = session(m, device).run(["largest", "sum", "least", "arg"], feeds)
    tk, tx, tw = (torch.from_numpy(v).to(device) for v in feeds.values())
    exact = F.segments(tk, num_segments=7, num_rows=40, num_weights=40)
    least, where = F.segreduce(tx, exact, w=tw, reduce="min", arg=True)
    for a, b in zip(found, (F.segreduce(tx, exact, reduce="max"), F.segreduce(tx, exact, w=tw), least, where)):
        np.testing.assert_array_equal(a, b.cpu().numpy())


def test_rows_that_a_call_leaves_alone_are_zero_or_what_is_given(device):
    m = so.Model()
    keys, count, x, begin = (m.input(n, d, s) for n, d, s in (("keys", np.int32, (12,)), ("count", np.int32, (1,)), ("x", np.float32, (5, 4)), ("begin", np.float32, (12, 4))))
    plan = m.segments(keys, num_segments=5, num_terms=count)
    y = m.gather(x, plan)
    m.output(y, "zeros")
    node = m.nodes[-2]
    again = onnx.NodeProto()
    again.CopyFrom(node)
    again.input.append(begin.name)  # after those of the row, which are x, w and rows
    again.output[0] = "begun"
    m.nodes.append(again)
    m.outputs.append(onnx.helper.make_tensor_value_info("begun", onnx.TensorProto.FLOAT, [12, 4]))
    r = np.random.default_rng(0)
    feeds = {"keys": r.integers(0, 5, 12).astype(np.int32), "count": np.array([8], np.int32), "x": r.normal(size=(5, 4)).astype(np.float32), "begin": r.normal(size=(12, 4)).astype(np.float32)}
    zeros, begun = session(m, device).run(["zeros", "begun"], feeds)
    np.testing.assert_array_equal(zeros[:8], feeds["x"][feeds["keys"][:8]])
    np.testing.assert_array_equal(begun[:8], zeros[:8])
    assert not zeros[8:].any()
    np.testing.assert_array_equal(begun[8:], feeds["begin"][8:])


@pytest.mark.parametrize("with_optional", [False, True])
@pytest.mark.parametrize("name", operators)
def test_row(name, with_optional, device):
    """Every row of the list is registered, and its node has the dtypes, shapes and bits of spops.jax."""
    m, feeds, expected = drawn_node(name, with_optional)
    found = session(m, device).run(None, feeds)
    if operators[name].makes_plan:
        assert found[0].shape == expected.block.shape and found[0].dtype == np.int32
        return
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a.view(np.uint8), np.ascontiguousarray(bits(b)).view(np.uint8))


def refusal(model, device, feeds):
    with pytest.raises(Exception) as e:
        session(model, device).run(None, feeds)
    return str(e.value)


def test_refusals_name_the_argument(device):
    x = np.zeros((40, 6), np.float32)

    def model(edit):
        m = so.Model()
        plan = m.segments(m.input("keys", np.int32, (40,)), num_segments=7)
        m.output(m.segreduce(m.input("x", np.float32, (40, 6)), plan), "y")
        edit(m)
        return m

    feeds = {"keys": np.zeros(40, np.int32), "x": x}

    def attribute(name, *value):
        def edit(m):
            node = next(n for n in m.nodes if n.op_type == "segreduce")
            for a in [a for a in node.attribute if a.name == name]:
                node.attribute.remove(a)
            node.attribute.extend([onnx.helper.make_attribute(name, v) for v in value])

        return edit

    assert 'segreduce: reduce is "most", expected sum mean min max prod' in refusal(model(attribute("reduce", "most")), device, feeds)
    assert "segreduce: reduce is a list, expected one number" in refusal(model(attribute("reduce", [1, 2])), device, feeds)
    assert "segreduce: this field is not given: segments_ints" in refusal(model(attribute("segments_ints")), device, feeds)
    assert "segreduce_execute: segments is a plan of another kind, expected segments" in refusal(model(attribute("segments_ints", [4, 1, 2, 3, 4, 5, 6, 7])), device, feeds)
    assert "segreduce_execute: reduce is 99" in refusal(model(attribute("reduce", 99)), device, feeds)
    assert "segreduce: output_dtype is given, expected none" in refusal(model(attribute("output_dtype", "f16")), device, feeds)
