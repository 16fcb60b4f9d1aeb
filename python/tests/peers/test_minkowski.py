# SPDX-License-Identifier: Apache-2.0
"""MinkowskiEngine's own tests on spops, file by file, on the CPU, in f64: those that the adapter goes far enough for.

The files are MinkowskiEngine's and not here: MINKOWSKI_SOURCE names a checkout of it.
"""
import contextlib
import importlib
import io
import os
import re
import types
import unittest
from pathlib import Path

import minkowski_names
import pytest
import sources
import torch

import spops.functional

source = os.environ.get("MINKOWSKI_SOURCE")
# The CPU in every place of a GPU; and a parameter is set by its data, as torch wants it by now.
REPLACED = (
    ("torch.cuda.is_available()", "True"), ("torch.cuda.device(0)", "contextlib.nullcontext()"), ("torch.cuda.empty_cache()", "None"),
    ("torch.cuda.", "torch."), (".cuda()", ".cpu()"), ('"cuda"', '"cpu"'), ("'cuda'", "'cpu'"), ("device=0", "device='cpu'"),
    (".to(0)", ".to('cpu')"), ("conv.kernel[:]", "conv.kernel.data[:]"), ("conv_tr.kernel[:]", "conv_tr.kernel.data[:]"),
)  # fmt: skip
# file -> tests that pass; the others want open3d and a file from the network, or names that the adapter has not
PASS = {
    "broadcast": """
        TestBroadcast.test_broadcast TestBroadcast.test_broadcast_gpu""".split(),
    "convolution": """
        TestChannelwiseConvolution.test TestConvolution.test TestConvolution.test_analytic
        TestConvolution.test_expansion TestConvolution.test_gpu TestConvolution.test_kernel_map
        TestConvolutionMode.test_gpu TestConvolutionTranspose.test TestConvolutionTranspose.test_analytic
        TestConvolutionTranspose.test_analytic_odd TestConvolutionTranspose.test_gpu
        TestGenerativeConvolutionTranspose.test TestGenerativeConvolutionTranspose.test_gpu""".split(),
    "coordinate_manager": """
        CoordinateManagerTestCase.test_coordinate_manager CoordinateManagerTestCase.test_negative_coords""".split(),
    "direct_pool": """
        TestCase.test TestCase.test_long""".split(),
    "interpolation": """
        TestInterpolation.test TestInterpolation.test_gpu TestInterpolation.test_strided_tensor
        TestInterpolation.test_zero""".split(),
    "norm": """
        TestNormalization.test_inst_norm TestNormalization.test_inst_norm_gpu""".split(),
    "pool": """
        TestGlobalAvgPooling.test TestGlobalAvgPooling.test_batch_size1 TestGlobalAvgPooling.test_gpu
        TestGlobalMaxPooling.test TestGlobalMaxPooling.test_batch_size TestGlobalMaxPooling.test_gpu
        TestLocalAvgPooling.test TestLocalAvgPooling.test_gpu TestLocalMaxPooling.test TestLocalMaxPooling.test_gpu
        TestLocalSumPooling.test_poolmap TestLocalSumPooling.test_sumpooling TestPoolingTranspose.test_unpool
        TestPoolingTranspose.test_unpool_gpu""".split(),
    "pruning": """
        TestPruning.test TestPruning.test_device TestPruning.test_empty TestPruning.test_pruning
        TestPruning.test_with_convtr""".split(),
    "sparse_tensor": """
        SparseTensorTestCase.test SparseTensorTestCase.test_device SparseTensorTestCase.test_device_unique
        SparseTensorTestCase.test_empty SparseTensorTestCase.test_extraction
        SparseTensorTestCase.test_features_at_coordinates SparseTensorTestCase.test_force_creation
        SparseTensorTestCase.test_quantization SparseTensorTestCase.test_quantization_gpu
        SparseTensorTestCase.test_tensor_stride""".split(),
    "spmm": """
        TestSPMM.test TestSPMM.test_average TestSPMM.test_dtype TestSPMM.test_spmm TestSPMM.test_spmm_sorted""".split(),
    "union": """
        TestUnion.test_union TestUnion.test_union_gpu""".split(),
}


def load(name):
    """A file of tests/python as a module, with minkowski_names under MinkowskiEngine's name."""
    root = Path(source) / "tests/python"
    m = types.ModuleType("minkowski_" + name)
    text = re.sub(r"LEAK_TEST_ITER = \d+", "LEAK_TEST_ITER = 3", (root / f"{name}.py").read_text())
    for there, here in REPLACED:
        text = text.replace(there, here)
    common = (root / "common.py").read_text()
    tests = sources.module("tests.python.common", os=os)
    names = minkowski_names.modules()
    stand = {**names, "tests": sources.module("tests"), "tests.python": sources.module("tests.python"), "tests.python.common": tests}
    with sources.standing_in(stand, ()):
        head, tail = common.split("from urllib.request import urlretrieve", 1)
        exec(compile(head + tail[tail.index("def load_file") :], "common.py", "exec"), vars(tests))
        vars(m).update(unittest=unittest, contextlib=contextlib)
        exec(compile(text, f"{name}.py", "exec"), vars(m))
    return m


class Counted:
    """spops.functional; counts what is taken from it."""

    def __init__(self, space):
        self.space, self.taken = space, 0

    def __getattr__(self, name):
        self.taken += 1
        return getattr(self.space, name)


def outcomes(name):
    """{Class.test: "passed", "nothing" where it ends before it calls the library, or the last line of why not}"""
    m, found = load(name), {}
    minkowski_names.F = counted = Counted(spops.functional)
    for case in unittest.defaultTestLoader.loadTestsFromModule(m):
        for test in case:
            torch.manual_seed(7)
            counted.taken = 0
            with contextlib.redirect_stdout(io.StringIO()):
                result = unittest.TestResult()
                test.run(result)
            bad = [*result.errors, *result.failures]
            found[test.id().split(".", 1)[1]] = bad[0][1].strip().splitlines()[-1] if bad else "passed" if counted.taken else "nothing"
    return found


@pytest.fixture(autouse=True)
def device():
    if not source:
        pytest.skip("MinkowskiEngine's tests: MINKOWSKI_SOURCE names no checkout of MinkowskiEngine")


@pytest.mark.parametrize("name", PASS)
def test_minkowski(name):
    found = outcomes(name)
    assert {k: v for k, v in found.items() if k in PASS[name] and v != "passed"} == {}
    assert set(PASS[name]) <= set(found)
