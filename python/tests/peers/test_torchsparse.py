# SPDX-License-Identifier: Apache-2.0
"""torchsparse's own tests/ on spops: 18 convolutions and to_dense, in f16.

The files are torchsparse's and not here: TORCHSPARSE_SOURCE names a checkout of it, or a folder with
its tests/test.py and tests/python. TORCHSPARSE_DEVICE is the device (cpu).
"""
import os
import sys
import types
from pathlib import Path

import pytest
import torch
import torchsparse_names

source = os.environ.get("TORCHSPARSE_SOURCE")
where = os.environ.get("TORCHSPARSE_DEVICE", "cpu")
FILES = ("python/test_utils.py", "python/test_single_layer_conv.py", "python/test_to_dense.py", "test.py")


@pytest.fixture(autouse=True)
def device():
    """Their files name the device themselves: one run of each."""
    torch.manual_seed(7)


@pytest.fixture(scope="module")
def suite():
    """The namespace of tests/test.py, with torchsparse_names under torchsparse's name."""
    if not source:
        pytest.skip("torchsparse's tests: TORCHSPARSE_SOURCE names no checkout of torchsparse")
    files = {"": types.ModuleType("python")}
    names = torchsparse_names.modules()
    sys.modules.update(names, python=files[""])
    for name in FILES:
        path = Path(source) / "tests" / name
        text = path.read_text().replace('"cuda:0"', repr(where))
        m = types.ModuleType(name[:-3].replace("/", "."))
        m.__package__ = m.__name__.rpartition(".")[0]
        sys.modules[m.__name__] = files[name] = m
        exec(compile(text, str(path), "exec"), vars(m))
        vars(files[""]).update({n: vars(m)[n] for n in vars(m).get("__all__", ())})
    yield files["test.py"]
    for n in (*names, "python", *(m.__name__ for m in files.values())):
        sys.modules.pop(n, None)


@pytest.mark.parametrize("case,method", [("SparseConvTestCase", "test_single_layer"), ("ToDenseTestCase", "test_to_dense")])
def test_torchsparse(suite, case, method):
    getattr(getattr(suite, case)(method), method)()
