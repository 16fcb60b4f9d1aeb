# SPDX-License-Identifier: Apache-2.0
"""Receptive fields of networks against what changes when one voxel of the input does."""
import math

import pytest
import torch

import spops
import spops.functional as F
import spops.nn as snn
from spops import Layer, receptive_field, receptive_field_of

SIDE = 24


def grid(sides, device):
    """Every place of a box, around 0."""
    axes = [torch.arange(n) - n // 2 for n in sides]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(sides))
    return torch.cat([torch.zeros(len(places), 1), places], 1).int().to(device)


def measured(run, rows, at):
    """How far the rows lie, before and after a row in `at`, whose outputs change with it. run: features -> rows of outputs."""
    dims = rows.shape[1] - 1
    lower, upper = [0] * dims, [0] * dims
    feats = torch.zeros(len(rows), 1, device=rows.device)
    for i in at:
        changed = feats.clone()
        changed[i] = float("nan")
        reached = rows[run(changed).isnan().any(1)][:, 1:] - rows[i, 1:]
        for a in range(dims):
            lower[a] = max(lower[a], int(reached[:, a].max()))  # the output lies behind: it reads before itself
            upper[a] = max(upper[a], -int(reached[:, a].min()))
    return tuple(lower), tuple(upper)


def places_around(rows, period):
    inner = ((rows[:, 1:] >= 0) & (rows[:, 1:] < period)).all(1)
    return inner.nonzero()[:, 0].tolist()


class UNet(torch.nn.Module):
    """Two levels down and up, a residual block, and a pooled branch."""

    def __init__(self):
        super().__init__()
        self.stem = snn.SubMConv2d(1, 1, 3)
        self.down1, self.down2 = snn.SparseConv2d(1, 1, 3, stride=2, padding=1, key=1), snn.SparseConv2d(1, 1, 2, stride=2, key=2)
        self.up1, self.up2 = snn.SparseInverseConv2d(1, 1, 3, key=1), snn.SparseInverseConv2d(1, 1, 2, key=2)
        self.norm, self.mix = snn.BatchNorm(1), snn.SubMConv2d(1, 1, 3)

    def forward(self, x):
        a = self.stem(x)
        b = self.norm(self.down1(a))
        c = self.up2(self.mix(self.down2(b)))
        return self.up1(b + c) + a


@pytest.mark.parametrize("build", [
    lambda: UNet(),
    lambda: snn.Sequential(snn.SubMConv2d(1, 1, 5), snn.SparseConv2d(1, 1, 4, stride=2, padding=1, key=1), snn.SubMConv2d(1, 1, 3, dilation=2), snn.SparseInverseConv2d(1, 1, 4, key=1)),
    lambda: snn.Sequential(snn.SubMConv2d(1, 1, 3), snn.SubMConv2d(1, 1, 3, dilation=3), snn.ReLU()),
], ids=["unet", "strided", "dilated"])  # fmt: skip
def test_networks(build, device):
    if device.type == "cuda":
        pytest.skip("the arithmetic needs no device, and zeros of tiles that lack a tap meet NaN there")
    net = build().eval()
    with torch.no_grad():
        for w in net.parameters():
            w.fill_(1.0)
    rows = grid((2 * SIDE, 2 * SIDE), device)
    x = spops.SparseTensor(torch.zeros(len(rows), 1), rows)
    reach = receptive_field_of(net, x, size_m=0.5)
    with torch.no_grad():
        lower, upper = measured(lambda f: net(x.replace(f)).feats, rows, places_around(rows, 4))
    assert (reach[0].lower, reach[0].upper) == (lower, upper)
    assert reach[0].lower_m == tuple(0.5 * n for n in lower) and reach[0].is_bounded
    assert [r.stride[0] for r in reach] == [1, 2, 4][: len(reach)]


def test_pools_and_interpolation(device):
    if device.type == "cuda":
        pytest.skip("the arithmetic needs no device")
    rows = grid((SIDE, SIDE), device)
    x = spops.SparseTensor(torch.zeros(len(rows), 1), rows)
    pool = snn.AvgPool2d(2)
    points = (rows[:, 1:, None] + torch.rand(len(rows), 2, 7, generator=torch.Generator().manual_seed(3))).transpose(1, 2).reshape(-1, 2)

    def run(feats):
        coarse = pool(x.replace(feats))
        return spops.devoxelize(coarse, points, size=2.0, origin=0.0, interpolation="linear").reshape(len(rows), -1)

    reach = receptive_field_of(run, x.feats)
    assert (reach[0].lower, reach[0].upper) == measured(run, rows, places_around(rows, 2))
    assert (reach[0].lower, reach[0].upper) == ((2, 2), (2, 2))


def test_windows(device):
    if device.type == "cuda":
        pytest.skip("the arithmetic needs no device")
    rows = grid((SIDE, SIDE, 2), device)
    patches = F.patches_grid(rows[:, 1:].contiguous(), window=[4, 8, 0], shift=[1, 0, 0], bits=5, origin_m=[-16.0, -16.0, -16.0])

    def run(feats):
        v = feats.repeat(1, 16)
        q = torch.zeros_like(v)
        return F.attention(q, q, v, patches)

    lower, upper = measured(run, rows, places_around(rows, 8))
    (level,) = receptive_field([Layer("window", size=[4, 8, 0], shift=[1, 0, 0])], 3, 0.1)
    assert level.lower[:2] == lower[:2] == (3, 7) and level.upper[:2] == upper[:2] == (3, 7)
    assert level.lower[2] == math.inf and not level.is_bounded and level.upper_m[2] == math.inf


@pytest.mark.parametrize("build", [
    lambda: snn.Sequential(snn.SparseConv2d(1, 4, 2, stride=2), snn.SubMConv2d(4, 4, 3), snn.ChannelToSpace(), snn.SubMConv2d(1, 1, 3)),
    lambda: snn.Sequential(snn.SubMConv2d(1, 1, 3), snn.SpaceToChannel(3), snn.SubMConv2d(9, 9, 3), snn.ChannelToSpace(3)),
    lambda: snn.Sequential(snn.MaxPool2d(2), snn.SubMConv2d(1, 1, 3), snn.SparseConvTranspose2d(1, 1, 2, stride=2), snn.SubMConv2d(1, 1, 3)),
], ids=["children", "channels", "generated"])  # fmt: skip
def test_children(build, device):
    """Layers between levels that are no convolutions with a key."""
    if device.type == "cuda":
        pytest.skip("the arithmetic needs no device")
    net = build().eval()
    with torch.no_grad():
        for w in net.parameters():
            w.fill_(1.0)
    rows = grid((SIDE, SIDE), device)
    x = spops.SparseTensor(torch.zeros(len(rows), 1), rows)
    reach = receptive_field_of(net, x)

    def run(feats):
        y = net(x.replace(feats))
        order = [{tuple(r): i for i, r in enumerate(y.coords.tolist())}[tuple(r)] for r in rows.tolist()]
        return y.feats[order]

    with torch.no_grad():
        assert (reach[0].lower, reach[0].upper) == measured(run, rows, places_around(rows, 6))


def test_grow(device):
    rows = grid((6, 6), device)
    x = spops.SparseTensor(torch.randn(len(rows), 1), rows)
    grow = snn.Grow(3, 2)
    (reach,) = receptive_field_of(lambda x: grow(x, torch.ones(len(x.feats), dtype=torch.bool, device=device)), x)
    assert reach.lower == reach.upper == (2, 2)


def test_other_threads(device):
    """Networks that other threads run meanwhile are not part of it, and two that are asked about do not mix."""
    from concurrent.futures import ThreadPoolExecutor

    rows = grid((6, 6), device)
    x = spops.SparseTensor(torch.zeros(len(rows), 1), rows)
    wide, global_norm = snn.SubMConv2d(1, 1, 7), snn.InstanceNorm(1)

    def net(y):
        y = snn.SubMConv2d(1, 1, 3).eval()(y)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: global_norm(wide(x))).result()
        return y

    assert receptive_field_of(net, x)[0].upper == (1, 1)
    layers = [snn.SubMConv2d(1, 1, size) for size in (1, 3, 5, 7)] * 5
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda layer: receptive_field_of(layer, x)[0].upper[0], layers))
    assert found == [0, 1, 2, 3] * 5


def test_what_reads_everything(device):
    rows = grid((6, 6), device)
    x = spops.SparseTensor(torch.randn(len(rows), 1), rows)
    norm = snn.BatchNorm(1)
    assert not receptive_field_of(norm, x)[0].is_bounded  # statistics of the batch
    assert receptive_field_of(norm.eval(), x)[0].most == 0
    assert not receptive_field_of(snn.InstanceNorm(1), x)[0].is_bounded
    assert not receptive_field_of(snn.GlobalPool(), x)[0].is_bounded


def test_refusals(device):
    with pytest.raises(ValueError, match="kind is 'rows', expected one of row "):
        receptive_field([Layer("rows")])
    with pytest.raises(ValueError, match=r"receptive_field: layers\[0\].kernel->stride\[0\] is 2, expected a divisor of 1"):
        receptive_field([Layer("transposed", stride=2, size=2)])
    with pytest.raises(ValueError, match="size_m has 2 numbers, expected 3"):
        receptive_field([], 3, [1.0, 2.0])
