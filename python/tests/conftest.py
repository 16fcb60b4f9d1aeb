# SPDX-License-Identifier: Apache-2.0
"""What the tests share. As for the C tests, SPOPS_TEST_BACKEND=cpu|cuda takes the tests of one device alone,
and SPOPS_REQUIRE_DEVICE=1 makes an error of a CUDA device that is not there."""
import os

import pytest
import torch

from spops import _device

DEVICES = ["cpu", "cuda"] if _device.has_cuda and torch.cuda.is_available() else ["cpu"]
if os.environ.get("SPOPS_REQUIRE_DEVICE") == "1" and "cuda" not in DEVICES:
    raise RuntimeError("SPOPS_REQUIRE_DEVICE=1, and there is no CUDA device, or the library or torch is without CUDA")
DEVICES = [d for d in DEVICES if d == os.environ.get("SPOPS_TEST_BACKEND", d)]


@pytest.fixture(autouse=True, params=DEVICES)
def device(request):
    """Every test runs on every device that there is: what torch makes in it is there."""
    torch.manual_seed(7)
    if request.param == "cpu":
        yield torch.device("cpu")
        return
    torch.backends.cudnn.allow_tf32 = False  # references in all their bits
    torch.set_default_device("cuda:0")
    yield torch.device("cuda:0")
    torch.cuda.synchronize()
    torch.set_default_device(None)


def grid_rows(n, shape=(12, 12, 12), batches=2, seed=1):
    """n different rows (batch, x, y, z)."""
    total = batches
    for s in shape:
        total *= s
    g = torch.Generator("cpu").manual_seed(seed)
    flat = torch.randperm(total, generator=g, device="cpu")[:n].to(torch.get_default_device())
    columns = []
    for s in reversed(shape):
        columns.append(flat % s)
        flat = flat // s
    return torch.stack([flat, *reversed(columns)], 1).int()
