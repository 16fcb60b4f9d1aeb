# SPDX-License-Identifier: Apache-2.0
"""For tests of engines: a network as a model of spops.onnx, and the same by calls in Python."""
import numpy as np
import torch

import spops.functional as F
from spops import onnx as so


def scan(n, capacity, seed=1, size=12):
    """n different rows (batch, x, y, z) of capacity, and garbage after them."""
    r = np.random.default_rng(seed)
    cells = r.permutation(2 * size**3)[:n]
    rows = np.full((capacity, 4), -77, np.int32)
    rows[:n] = np.stack([cells // size**3, cells // size**2 % size, cells // size % size, cells % size], 1)
    return rows


def network(dtype, activate, rows=300):
    """Voxel features -> map -> convolution -> norm and ReLU -> strided convolution -> activate(model, x) -> pool over a sample."""
    r = np.random.default_rng(5)
    w1, w2 = (r.normal(size=s).astype(dtype) / 8 for s in ((27 * 8, 16), (8 * 16, 24)))
    gamma, beta = (r.random(16).astype(np.float32) + f for f in (0.5, -0.5))
    m = so.Model("network")
    coords, num, x = m.input("rows", np.int32, (rows, 4)), m.input("num_rows", np.int32, (1,)), m.input("x", dtype, (rows, 8))
    sites = m.coords(coords, num_rows=num, lower=(0, 0, 0, 0), upper=(1, 11, 11, 11))
    y = m.sparseconv(x, w1, m.sparseconv_plan(m.kernel_map(sites, size=3), max_in_channels=32, max_out_channels=32))
    y = m.layernorm(y, gamma=gamma, beta=beta, activation="relu", epsilon=1e-5)
    down = m.coords_down(sites, size=2, stride=2, max_rows=432)
    between = m.sparseconv_plan(m.kernel_map(sites, down, kind="convolution", size=2, stride=2), max_in_channels=32, max_out_channels=32)
    z = activate(m, m.sparseconv(y, w2, between))
    pooled = m.pool(z, m.pool_global_plan(down, num_batches=2, max_cols=32), reduce="max")
    places, count = m.coords_rows(down)
    for value, name in ((pooled, "pooled"), (z, "z"), (places, "places"), (count, "count")):
        m.output(value, name)
    return m, (w1, w2, gamma, beta)


def same_network(rows, x, weights, activate, device="cpu"):
    """The same by calls in Python, on exact plans; activate takes and gives a tensor."""
    w1, w2, gamma, beta = (torch.from_numpy(w).to(device) for w in weights)
    sites = F.coords(torch.from_numpy(rows).to(device))
    y = F.sparseconv(torch.from_numpy(x).to(device), w1, F.sparseconv_plan(F.kernel_map(sites, size=3), max_in_channels=32, max_out_channels=32))
    y = F.layernorm(y, gamma=gamma, beta=beta, activation="relu", epsilon=1e-5)
    down = F.coords_down(sites, size=2, stride=2)
    between = F.sparseconv_plan(F.kernel_map(sites, down, kind="convolution", size=2, stride=2), max_in_channels=32, max_out_channels=32)
    z = activate(F.sparseconv(y, w2, between))
    places, _ = F.coords_rows(down)
    return F.pool(z, F.pool_global_plan(down, num_batches=2, max_cols=32), "max"), z, places


def check_network(outputs, expected):
    """Outputs of the model by name have the bits of same_network's."""
    k = int(outputs["count"][0])
    assert k == expected[2].shape[0] > 0
    for found, of in ((outputs["pooled"], expected[0]), (outputs["z"][:k], expected[1]), (outputs["places"][:k], expected[2])):
        np.testing.assert_array_equal(found.view(np.uint8), of.cpu().numpy().view(np.uint8))
    assert np.abs(outputs["pooled"].astype(np.float32)).max() > 0
