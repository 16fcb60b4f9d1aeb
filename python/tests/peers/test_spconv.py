# SPDX-License-Identifier: Apache-2.0
"""spconv's own test/test_conv.py on spops.spconv.

The files are spconv's and not here: SPCONV_SOURCE names a checkout of it, or a folder with its
test_conv.py and test_utils.py. SPCONV_EVERY=37 takes every 37th case (the default), 1 all of them,
from SPCONV_FIRST (0) on: eight processes with SPCONV_EVERY=8 share the whole. SPCONV_DEVICE is the
device (cpu).
"""
import importlib
import os
import sys
import types
from pathlib import Path

import pytest
import torch

source = os.environ.get("SPCONV_SOURCE")
every = int(os.environ.get("SPCONV_EVERY", "37"))
first = int(os.environ.get("SPCONV_FIRST", "0"))
where = os.environ.get("SPCONV_DEVICE", "cpu")


def find(*names):
    for name in names:
        path = Path(source) / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"{source} has none of {names}")


@pytest.fixture(autouse=True)
def device():
    """Their files name the device themselves: one run of each."""
    torch.manual_seed(7)


@pytest.fixture(scope="module")
def suite():
    """The namespace of test_conv.py, with spops.spconv under spconv's name."""
    if not source:
        pytest.skip("spconv's tests: SPCONV_SOURCE names no checkout of spconv")
    names = {n: importlib.import_module("spops." + n) for n in ("spconv", "spconv.core", "spconv.constants", "spconv.pytorch")}
    utils = types.ModuleType("spconv.test_utils")
    path = find("spconv/test_utils.py", "test_utils.py")
    exec(compile(path.read_text(), str(path), "exec"), vars(utils))
    sys.modules.update(names, **{"spconv.test_utils": utils})
    path = find("test/test_conv.py", "test_conv.py")
    text = path.read_text().replace('"cuda:0"', repr(where)).replace('"cpu:0"', repr(where))
    space = {"__name__": "spconv_test_conv"}
    exec(compile(text, str(path), "exec"), space)
    yield space
    for n in (*names, "spconv.test_utils"):
        sys.modules.pop(n, None)


@pytest.mark.parametrize("name", ["test_spconv3d", "test_spdeconv3d", "test_spmaxpool3d", "test_spglobalmaxpool3d"])
def test_spconv(suite, name, capsys):
    grid, count, last = suite["params_grid"], [0], [None]

    def some(*axes):
        for i, case in enumerate(grid(*axes)):
            if i % every == first:
                count[0] += 1
                last[0] = case
                yield case

    suite["params_grid"] = some
    torch.set_num_threads(2)
    try:
        suite[name]()
    except Exception as e:
        raise AssertionError(f"{name}: case {count[0]} of every {every}th, {last[0]}") from e
    finally:
        suite["params_grid"] = grid
    with capsys.disabled():
        print(f"\n{name}: {count[0]} cases", end=" ")
    if count[0] == 0:
        pytest.skip(f"{name} has no case {first}")
