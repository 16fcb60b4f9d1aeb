# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)


def grid_rows(n, shape=(12, 12, 12), batches=2, seed=1):
    """n different rows (batch, x, y, z)."""
    total = batches
    for s in shape:
        total *= s
    g = torch.Generator().manual_seed(seed)
    flat = torch.randperm(total, generator=g)[:n]
    columns = []
    for s in reversed(shape):
        columns.append(flat % s)
        flat = flat // s
    return torch.stack([flat, *reversed(columns)], 1).int()
