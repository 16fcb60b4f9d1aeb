# SPDX-License-Identifier: Apache-2.0
"""Models of spops.onnx, loaded and run by the library itself (spops/model.h): the bits of the calls in Python."""
import ctypes as c

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx_network import check_network, network, same_network, scan  # noqa: E402
from test_jax import platform  # noqa: E402, F401

import spops.functional as F  # noqa: E402
from spops import _library  # noqa: E402

lib = c.CDLL(_library.path)  # its functions have argument types of their own
LEAKY = {"kind": "leaky_relu", "activation_slope": 0.25}
DTYPES = [np.float32, np.float16]


class Array(c.Structure):
    """spops_model_array."""
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("dtype", c.c_int), ("num_dims", c.c_int32), ("shape", c.c_int64 * 8),
                ("row_stride", c.c_int64), ("data", c.c_void_p), ("set", c.c_int32), ("dims", c.c_int32), ("num_rows", c.c_void_p),
                ("coords", c.c_void_p), ("points", c.c_void_p), ("batch", c.c_void_p)]


class Model:
    """A model on the CPU."""

    def __init__(self, path):
        self.ctx, self.model = _library.new_context("cpu"), c.c_void_p()
        lib.spops_last_error.restype = c.c_char_p
        self.ok(lib.spops_model_load_file(self.ctx, str(path).encode(), None, c.byref(self.model)))

    def ok(self, status):
        if status != 0:
            raise RuntimeError(lib.spops_last_error(self.ctx).decode())

    def array(self, get, index, dtype):
        a = Array(c.sizeof(Array))
        self.ok(get(self.ctx, self.model, c.c_int32(index), c.byref(a)))
        shape = tuple(a.shape[: a.num_dims])
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return a.name.decode(), np.frombuffer((c.c_uint8 * size).from_address(a.data), dtype).reshape(shape)

    def run(self, feeds, outputs):
        for i, value in enumerate(feeds.values()):
            name, to = self.array(lib.spops_model_get_input, i, value.dtype)
            assert name in feeds
            to[...] = feeds[name]
        self.ok(lib.spops_model_execute(self.ctx, self.model))
        self.ok(lib.spops_model_check_sync(self.ctx, self.model))
        return {n: v.copy() for n, v in (self.array(lib.spops_model_get_output, i, d) for i, d in enumerate(outputs))}

    def close(self):
        lib.spops_model_destroy(self.model)
        lib.spops_context_destroy(self.ctx)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_library_runs_models_of_its_operators(device, tmp_path, dtype):
    if device.type != "cpu":
        pytest.skip("arrays are written from the host here; tests/test_model.c runs on CUDA")
    m, weights = network(dtype, lambda m, y: m.activation(y, **LEAKY))
    path = tmp_path / "network.onnx"
    onnx.save(m.proto(), str(path))
    model = Model(path)
    for n, seed in ((300, 1), (187, 2), (1, 3)):
        rows, x = scan(n, 300, seed), np.random.default_rng(seed).normal(size=(300, 8)).astype(dtype)
        out = model.run({"rows": rows, "num_rows": np.array([n], np.int32), "x": x}, (dtype, dtype, np.int32, np.int32))
        check_network(out, same_network(rows[:n], x[:n], weights, lambda y: F.activation(y, **LEAKY)))
    model.close()


def test_damage_is_refused_with_its_place(device, tmp_path):
    if device.type != "cpu":
        pytest.skip("the same on every backend")
    data = network(np.float32, lambda m, y: m.activation(y, **LEAKY))[0].proto().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(RuntimeError, match=r"^model_load_file: .*byte \d+: "):
        Model(path)
