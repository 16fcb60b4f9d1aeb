# SPDX-License-Identifier: Apache-2.0
"""Layers against dense ones of torch."""
import copy
import gc
import weakref

import pytest
import torch
from conftest import grid_rows

import spops
import spops.functional as F
import spops.nn as snn
import spops.spconv.pytorch as spconv
from spops import _layers

SHAPE = (9, 10, 11, 6)


def tensor(dims, n=120, c=6, batches=2):
    rows = grid_rows(n, SHAPE[:dims], batches) if dims > 1 else grid_rows(min(n, 14), SHAPE[:1], batches)
    return spops.SparseTensor(torch.randn(len(rows), c), rows, SHAPE[:dims], batches)


def at_places(dense, coords):
    """Rows of a dense [B, C, ...] at places."""
    c = coords.long()
    return dense.movedim(1, -1)[tuple(c.unbind(1))]


def dense_weight(layer):
    """[out, in, *sizes] from [taps, in, out]."""
    k = layer.kernel.size
    return layer.weight.detach().reshape(*k, *layer.weight.shape[1:]).movedim((-1, -2), (0, 1))


def dense_conv(dims, transposed=False):
    name = f"conv{'_transpose' if transposed else ''}{dims}d"
    return getattr(torch.nn.functional, name)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("size,dilation", [(3, 1), (5, 1), (3, 2), (1, 1)])
def test_submanifold(dims, size, dilation):
    x = tensor(dims)
    layer = getattr(snn, f"SubMConv{dims}d")(6, 5, size, dilation=dilation)
    y = layer(x)
    ref = dense_conv(dims)(x.dense(), dense_weight(layer), layer.bias.detach(), padding=dilation * (size // 2), dilation=dilation)
    torch.testing.assert_close(y.feats.detach(), at_places(ref, y.coords), rtol=1e-4, atol=1e-4)
    assert y.sites is x.sites


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("size,stride,padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_strided(dims, size, stride, padding, groups):
    x = tensor(dims)
    layer = getattr(snn, f"SparseConv{dims}d")(6, 4, size, stride, padding, groups=groups, bias=False)
    y = layer(x)
    w = dense_weight(layer)  # groups: out channels of a group are neighbours
    ref = dense_conv(dims)(x.dense(), w, stride=stride, padding=padding, groups=groups)
    assert y.spatial_shape == tuple(ref.shape[2:]) and y.stride == (stride,) * dims
    torch.testing.assert_close(y.dense().detach(), ref, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("size,stride,padding", [(2, 2, 0), (3, 2, 1), (3, 1, 0)])
def test_transposed(dims, size, stride, padding):
    x = tensor(dims, n=30)
    layer = getattr(snn, f"SparseConvTranspose{dims}d")(6, 4, size, stride, padding, bias=False)
    y = layer(x)
    w = dense_weight(layer).transpose(0, 1)
    ref = dense_conv(dims, True)(x.dense(), w, stride=stride, padding=padding)
    assert y.spatial_shape == tuple(ref.shape[2:])
    torch.testing.assert_close(y.dense().detach(), ref, rtol=1e-4, atol=1e-4)


def test_four_axes():
    x = tensor(4, n=300)
    down = snn.SparseConv4d(6, 8, 2, stride=2, key="d")
    up = snn.SparseInverseConv4d(8, 6, 2, key="d")
    y = down(x)
    z = up(y)
    assert y.dims == 4 and z.sites is x.sites and z.feats.shape == (300, 6)
    snn.SubMConv4d(6, 3)(z).feats.sum().backward()
    assert torch.isfinite(down.weight.grad).all() and down.weight.grad.abs().sum() > 0


def test_inverse_against_dense():
    x = tensor(3)
    down, up = snn.SparseConv3d(6, 4, 2, stride=2, key="d", bias=False), snn.SparseInverseConv3d(4, 3, 2, key="d", bias=False)
    y = down(x)
    z = up(y)
    w = dense_weight(up).transpose(0, 1)
    ref = torch.nn.functional.conv_transpose3d(y.dense().detach(), w, stride=2)
    padded = torch.nn.functional.pad(ref, [0, 1] * 3)
    torch.testing.assert_close(z.feats.detach(), at_places(padded, x.coords), rtol=1e-4, atol=1e-4)
    with pytest.raises(KeyError, match="no layer before this one has the key 'other'"):
        snn.SparseInverseConv3d(4, 3, 2, key="other")(y)
    with pytest.raises(ValueError, match=r"kernel_size \(2, 2, 2\), this one \(3, 3, 3\)"):
        snn.SparseInverseConv3d(4, 3, 3, key="d")(y)


@pytest.mark.parametrize("reduce,name", [("max", "MaxPool"), ("mean", "AvgPool")])
def test_pools(reduce, name):
    x = tensor(3)
    x = x.replace(x.feats.requires_grad_())
    y = getattr(snn, f"{name}3d")(2)(x)
    index = torch.div(x.coords[:, 1:], 2, rounding_mode="floor")
    keys = torch.cat([x.coords[:, :1], index], 1).long()
    flat = (keys * torch.tensor([1000000, 10000, 100, 1])).sum(1)
    mine = (y.coords.long() * torch.tensor([1000000, 10000, 100, 1])).sum(1)
    for place, row in zip(mine.tolist(), y.feats):
        rows = x.feats[flat == place]
        torch.testing.assert_close(row, rows.amax(0) if reduce == "max" else rows.mean(0))
    y.feats.square().sum().backward()
    g = snn.GlobalPool(reduce)(x)
    for b in range(2):
        rows = x.feats[x.coords[:, 0] == b]
        torch.testing.assert_close(g[b], rows.amax(0) if reduce == "max" else rows.mean(0))


def test_batchnorm_is_torchs():
    x = torch.randn(50, 7)
    mine, theirs = snn.BatchNorm(7, relu=True), torch.nn.BatchNorm1d(7)
    for _ in range(3):
        y, r = mine(x), torch.relu(theirs(x))
        torch.testing.assert_close(y, r, rtol=1e-4, atol=1e-5)
        x = x * 1.5 + 0.3
    theirs_state = theirs.state_dict()
    for k, v in mine.state_dict().items():
        torch.testing.assert_close(v, theirs_state[k], rtol=1e-4, atol=1e-5)
    mine.load_state_dict(theirs_state)
    mine.eval(), theirs.eval()
    torch.testing.assert_close(mine(x), torch.relu(theirs(x)), rtol=1e-4, atol=1e-5)


def test_batchnorms_are_converted():
    """A network of torch and its copy with converted norms: outputs, gradients and states."""
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8, eps=1e-3, momentum=0.01), torch.nn.ReLU(),
        torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6, affine=False)), torch.nn.BatchNorm1d(6, momentum=None),
    )  # fmt: skip
    mine = snn.convert_batchnorm(copy.deepcopy(net))
    assert isinstance(mine[1], snn.BatchNorm) and isinstance(mine[2], torch.nn.Identity) and isinstance(mine[3][1], snn.BatchNorm)
    assert type(mine[4]) is torch.nn.BatchNorm1d and list(mine.state_dict()) == list(net.state_dict())
    assert isinstance(snn.convert_batchnorm(torch.nn.BatchNorm1d(3)), snn.BatchNorm)
    for _ in range(2):
        x, g = torch.randn(40, 5), torch.randn(40, 6)
        outs = []
        for n in (net, mine):
            n.zero_grad()
            outs.append(n(x))
            outs[-1].backward(g)
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)
        for p, q in zip(net.parameters(), mine.parameters()):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-4)
    for k, v in net.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[k], v, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.eval()(x), net.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_of_spconv_lie_as_they_are_multiplied(transposed, device):
    """Gradients arrive in the parameter's own layout, in its dtype, also where autocast multiplies."""
    import spops.spconv.pytorch as spconv

    kind = spconv.SparseConvTranspose3d if transposed else spconv.SubMConv3d
    layer = kind(6, 5, 3, padding=1)
    assert layer.weight.shape == (5, 3, 3, 3, 6) and layer.weight.permute(1, 2, 3, 4, 0).is_contiguous()
    x = tensor(3)
    x = spconv.SparseConvTensor(x.feats.requires_grad_(), x.coords, x.spatial_shape, x.batch_size)
    grads = []
    for half in (False, True):
        layer.weight.grad = x.features.grad = None
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            y = layer(x)
        assert y.features.dtype is (torch.bfloat16 if half else torch.float32)
        y.features.float().square().sum().backward()
        assert layer.weight.grad.stride() == layer.weight.stride() and layer.weight.grad.dtype is torch.float32
        assert x.features.grad.dtype is torch.float32
        grads.append((layer.weight.grad, x.features.grad))
    for a, b in zip(*grads):
        assert (a - b).norm() < 2e-2 * a.norm()
    copied = copy.deepcopy(layer)
    copied.load_state_dict({k: v.contiguous() for k, v in layer.state_dict().items()})
    assert torch.equal(copied.weight, layer.weight) and copied.weight.stride() == layer.weight.stride()


def test_linear_and_layernorm_are_torchs():
    x = torch.randn(20, 8)
    mine, theirs = snn.Linear(8, 5), torch.nn.Linear(8, 5)
    mine.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(snn.LayerNorm(8)(x), torch.nn.LayerNorm(8)(x), rtol=1e-4, atol=1e-5)


def test_a_network_learns():
    """The sum of a row's neighbours, which a submanifold convolution can be."""
    net = snn.Sequential(
        snn.SubMConv3d(2, 16, key="a"), snn.BatchNorm(16, relu=True), snn.SparseConv3d(16, 16, 2, stride=2, key="d"),
        torch.nn.ReLU(), snn.SparseInverseConv3d(16, 16, 2, key="d"), snn.SubMConv3d(16, 1),
    )  # fmt: skip
    rows = grid_rows(400)
    x = spops.SparseTensor(torch.randn(400, 2), rows, (12, 12, 12), 2)
    ones = torch.ones(1, 2, 3, 3, 3)
    target = at_places(torch.nn.functional.conv3d(x.dense(), ones, padding=1), rows)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (net(x).feats - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses


def test_maps_are_made_once():
    x = tensor(3)
    a, b = snn.SubMConv3d(6, 6), snn.SubMConv3d(6, 6)
    y = b(a(x))
    assert len(x.sites._relations) == 1
    down = snn.SparseConv3d(6, 6, 2, stride=2)
    assert down(x).sites is down(y).sites


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_and_autocast(dtype, device):
    x = tensor(3)
    layer = snn.SubMConv3d(6, 6)
    y = layer(x.replace(x.feats.to(dtype)))
    assert y.feats.dtype is dtype
    with torch.autocast(device.type, torch.bfloat16):
        z = layer(x)
    assert z.feats.dtype is torch.bfloat16
    z.feats.float().sum().backward()
    assert layer.weight.grad.dtype is torch.float32


def test_attention_block():
    points = torch.rand(300, 3)
    patches = F.patches_order(points, patch_rows=64, size_m=[0.05] * 3)
    block = snn.AttentionBlock(32, 4)
    f = torch.randn(300, 32, requires_grad=True)
    block(f, patches).square().sum().backward()
    assert torch.isfinite(f.grad).all() and all(p.grad is not None for p in block.parameters())


def test_attention_block_over_buckets():
    """Rows of a bucket attend to each other, and to nobody else."""
    points = torch.rand(256, 3)
    buckets = F.buckets(points, bucket_rows=32, size_m=[0.25] * 3)
    block = snn.AttentionBlock(16, 2).eval()
    f = torch.randn(256, 16)
    with torch.no_grad():
        y = block(f, F.patches_buckets(buckets))
        of = F.buckets_rows(buckets, rows=False, places=False, row_buckets=True)
        for b in of.unique()[:4]:
            mine = torch.nonzero(of == b)[:, 0]
            alone = F.patches(torch.tensor([0, len(mine)]), len(mine))
            torch.testing.assert_close(y[mine], block(f[mine], alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels_first", [True, False])
def test_bev_pooling(channels_first):
    """A camera that sees at a depth of 1 m what lies at x = column, y = row: every pixel has a cell."""
    plan = F.bev_plan(
        num_batches=2, num_cameras=1, num_depths=1, feature_height=2, feature_width=4, num_cells_x=4, num_cells_y=2, num_cells_z=1,
        input_height=2, input_width=4, depth_start_m=1.0, depth_step_m=1.0, grid_lower_m=[-0.25, -0.25, 0.5], cell_size_m=[1.0, 1, 1],
        backward=True, device=torch.get_default_device(),
    )  # fmt: skip
    feat, depth = torch.randn(2, 1, 8, 2, 4, requires_grad=True), torch.rand(2, 1, 1, 2, 4, requires_grad=True)
    y = snn.BEVPool(channels_first)(feat, depth, plan)
    ref = feat * depth  # [B, 1, C, Y, X]
    ref = ref.movedim(1, 2) if channels_first else ref.movedim(2, -1)
    torch.testing.assert_close(y, ref)
    g = torch.randn_like(y)
    for mine, theirs in zip(torch.autograd.grad(y, (feat, depth), g), torch.autograd.grad(ref, (feat, depth), g)):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match=r"feat is \[1, 1, 8, 2, 4\], expected \[2, 1, channels, 2, 4\]"):
        snn.BEVPool()(feat[:1], depth, plan)
    with pytest.raises(ValueError, match=r"depth is \[2, 1, 1, 2, 3\], expected \[2, 1, 1, 2, 4\]"):
        snn.BEVPool()(feat, depth[..., :3], plan)


def test_point_convolution():
    points = torch.rand(200, 3)
    n = F.neighbors(points, radius_m=0.2, taps=3, tap_size_m=0.15)
    plan = F.pointconv_plan(n, backward=True)
    layer = snn.PointConv(4, 8)
    x = torch.randn(200, 4, requires_grad=True)
    y = layer(x, plan)
    y.sum().backward()
    assert y.shape == (200, 8) and torch.isfinite(x.grad).all() and layer.weight.grad.abs().sum() > 0


def test_voxels_and_back():
    points = torch.rand(500, 3) * 2
    feats = torch.randn(500, 5, requires_grad=True)
    x = spops.voxelize(points, 0.25, feats)
    cells = torch.floor(points / 0.25).int()
    for row, f in list(zip(x.coords, x.feats))[:20]:
        torch.testing.assert_close(f, feats[(cells == row[1:]).all(1)].mean(0), rtol=1e-4, atol=1e-5)
    back = spops.devoxelize(x, points)
    place = {tuple(c.tolist()): i for i, c in enumerate(x.coords[:, 1:])}
    rows = torch.tensor([place[tuple(c.tolist())] for c in cells])
    torch.testing.assert_close(back, x.feats[rows])
    back.square().sum().backward()
    assert torch.isfinite(feats.grad).all()
    smooth = spops.devoxelize(x, points, interpolation="linear")
    assert smooth.shape == (500, 5)


def test_pruning():
    x = tensor(3)
    keep = x.feats[:, 0] > 0
    y = snn.Pruning()(x, keep)
    assert torch.equal(y.feats, x.feats[keep]) and torch.equal(y.coords, x.coords[keep])
    assert torch.equal(F.coords_rows(y.set)[0], y.coords)
    snn.SubMConv3d(6, 2)(y)


def test_sparse_tensors():
    x = tensor(3)
    assert torch.equal((x + x).feats, 2 * x.feats) and torch.equal((2 * x).feats, 2 * x.feats)
    assert x.cat(x).feats.shape[1] == 12
    with pytest.raises(ValueError, match="other places"):
        x + spops.SparseTensor(x.feats, x.coords.flip(0), x.spatial_shape)
    with pytest.raises(ValueError, match=r"feats is \[3, 6\], expected \[120, channels\]"):
        spops.SparseTensor(x.feats[:3], x.coords)
    with pytest.raises(ValueError, match="batch and 1 to 4 axes"):
        spops.SparseTensor(x.feats, x.feats[:, :1])
    twice = spops.SparseTensor(torch.ones(2, 1), torch.zeros(2, 4, dtype=torch.int32))
    with pytest.raises(ValueError, match="rows"):
        twice.set
    empty = spops.SparseTensor(torch.ones(0, 6), torch.zeros(0, 4, dtype=torch.int32), (4, 4, 4), 1)
    assert snn.SubMConv3d(6, 2)(empty).feats.shape == (0, 2)
    assert snn.SparseConv3d(6, 2, 2, stride=2)(empty).feats.shape == (0, 2)


@pytest.mark.parametrize("krsc", [False, True])
def test_layers_that_tensor_cores_take(monkeypatch, krsc, device):
    """Their rows are padded to whole 16 bytes and copied where they begin elsewhere, and their plans have no pairs."""
    if device.type == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("this device has no gradients of weights on tensor cores")
    rows = grid_rows(200)
    layer = (spconv.SubMConv3d if krsc else snn.SubMConv3d)(4, 16, 3).half()
    wide = torch.randn(200, 7).half()
    g = torch.randn(16, 200).half().t()  # a gradient whose columns have gaps

    def run(feats):
        feats = feats.requires_grad_()
        layer.zero_grad()
        if krsc:
            y = layer(spconv.SparseConvTensor(feats, rows, (12, 12, 12), 2)).features
        else:
            y = layer(spops.SparseTensor(feats, rows, (12, 12, 12), 2)).feats
        y.backward(g)
        with torch.no_grad():
            x = spops.SparseTensor(feats, rows, (12, 12, 12), 2)
            assert torch.equal(y, layer(spconv.SparseConvTensor(None, None, None, None, _sparse=x)).features if krsc else layer(x).feats)
        return [y.detach(), feats.grad, layer.weight.grad, layer.bias.grad]

    monkeypatch.setattr(_layers, "fits_tensor_cores", lambda *_: False)
    expected = run(wide[:, 1:5].contiguous())
    monkeypatch.setattr(_layers, "fits_tensor_cores", lambda x, *_: x.dtype is torch.float16)
    for got, want in zip(run(wide[:, 1:5]), expected):
        assert got.shape == want.shape and got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=4e-3, atol=4e-3)
    relation = spops.SparseTensor(wide, rows, (12, 12, 12), 2).sites.within(layer.kernel)
    whole, lean = relation.conv(16), relation.conv(16, False)
    assert relation.conv(32) is whole and relation.conv(300).max_in_channels == 512
    assert (lean is whole) == (device.type == "cpu") and (lean is whole or lean.bytes < whole.bytes)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("channels_first", [True, False])
def test_dense_and_back(dims, channels_first):
    x = tensor(dims)
    feats = x.feats.detach().requires_grad_()
    x = x.replace(feats)
    grid = x.dense(channels_first, fill=0.5)
    index = tuple(x.coords.long().unbind(1))
    expected = torch.full((x.batch_size, *x.spatial_shape, 6), 0.5).index_put(index, feats)
    expected = expected.movedim(-1, 1) if channels_first else expected
    assert grid.is_contiguous() and torch.equal(grid, expected)
    back = x.from_dense(grid, channels_first)
    assert torch.equal(back.feats, feats) and back.sites is x.sites
    weight = torch.rand_like(grid)
    (grid * weight).sum().backward()
    assert torch.equal(feats.grad, (weight.movedim(1, -1) if channels_first else weight)[index])
    with pytest.raises(ValueError, match="from_dense needs|the grid is"):
        x.from_dense(grid[..., :1])


def test_plans_go_with_the_last_tensor():
    """No reference leads back: without a collection nothing of a step is left."""
    net = snn.Sequential(snn.SubMConv3d(4, 8, 3), snn.SparseConv3d(8, 8, 2, stride=2, key="d"), snn.SubMConv3d(8, 8, 3),
                         snn.SparseInverseConv3d(8, 8, 2, key="d"), snn.SubMConv3d(8, 8, 3))  # fmt: skip
    gc.collect()
    gc.disable()
    try:
        x = spops.SparseTensor(torch.randn(200, 4), grid_rows(200), (12, 12, 12), 2)
        y = net(x)
        assert y.sites is x.sites
        y.feats.sum().backward()
        left = [weakref.ref(o) for o in (x.sites, x.sites.set, *x.sites._relations.values(), *(r.map for r in x.sites._relations.values()))]
        assert len(left) == 6
        del x, y
        assert [r() for r in left] == [None] * 6
    finally:
        gc.enable()


def children_of(x, factor):
    """[rows, factor^D, 1 + D]: places of all children, the last axis fastest."""
    digits = torch.cartesian_prod(*[torch.arange(factor)] * x.dims).reshape(-1, x.dims)
    return torch.cat([x.coords[:, None, :1].expand(-1, len(digits), -1), factor * x.coords[:, None, 1:] + digits], 2)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("factor", [2, 3])
def test_channels_and_space(dims, factor):
    children = factor**dims
    x = tensor(dims, c=3 * children)
    feats = x.feats.detach().requires_grad_()
    x = x.replace(feats)
    keep = torch.rand(len(x), children) > 0.5
    y = snn.ChannelToSpace(factor)(x, keep)
    assert torch.equal(y.coords, children_of(x, factor)[keep].int()) and y.spatial_shape == tuple(factor * n for n in x.spatial_shape)
    assert torch.equal(y.feats, feats.reshape(len(x), children, 3)[keep])
    back = snn.SpaceToChannel(factor)(y, like=x)
    assert torch.equal(back.feats, (feats.reshape(len(x), children, 3) * keep[..., None]).reshape(len(x), -1)) and back.sites is x.sites
    alone = snn.SpaceToChannel(factor)(y)
    assert len(alone) == int(keep.any(1).sum()) and alone.feats.shape[1] == 3 * children
    assert torch.equal(snn.ChannelToSpace(factor)(alone, like=y).feats, y.feats)
    weight = torch.rand_like(y.feats)
    (y.feats * weight).sum().backward()
    expected = torch.zeros(len(x), children, 3)
    expected[keep] = weight
    assert torch.equal(feats.grad, expected.reshape(len(x), -1))
    assert len(snn.ChannelToSpace(factor)(x)) == len(x) * children
    with pytest.raises(ValueError, match="keep is"):
        snn.ChannelToSpace(factor)(x, keep[:, 1:])


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_growth(dims):
    x = tensor(dims)
    marks = torch.rand(len(x)) > 0.7
    y = snn.Grow(3)(x, marks)
    assert torch.equal(y.coords[: len(x)], x.coords) and torch.equal(y.feats[: len(x)], x.feats) and y.feats[len(x) :].eq(0).all()
    grid = x.replace(marks[:, None].float()).dense()
    near = getattr(torch.nn.functional, f"max_pool{dims}d")(grid, 3, 1, 1)[:, 0] > 0
    near |= x.replace(torch.ones(len(x), 1)).dense()[:, 0] > 0
    assert {tuple(r) for r in y.coords.tolist()} == {tuple(r) for r in torch.nonzero(near).tolist()} and len(y) == int(near.sum())


@pytest.mark.parametrize("choose", ["first", "random"])
def test_hard_voxels(choose):
    points, feats = torch.rand(500, 2), torch.randn(500, 4, requires_grad=True)
    padded, rows, counts = spops.hard_voxelize(points, 0.25, 5, feats, choose=choose, seed=3)
    cells = torch.floor(points / 0.25).int()
    for v, row in enumerate(rows.tolist()):
        own = torch.nonzero((cells == torch.tensor(row[1:])).all(1))[:, 0]
        assert counts[v] == min(len(own), 5) and padded[v, counts[v] :].eq(0).all()
        if choose == "first":
            assert torch.equal(padded[v, : counts[v]], feats[own[:5]])
        else:
            places = [int((feats[own] == p).all(1).nonzero()[0]) for p in padded[v, : counts[v]]]
            assert len(set(places)) == len(places)
    other, _, _ = spops.hard_voxelize(points, 0.25, 5, feats, choose=choose, seed=4)
    assert torch.equal(other, padded) == (choose == "first")
    padded.sum().backward()
    assert feats.grad.sum() == 4 * counts.sum() and feats.grad.unique().tolist() == [0.0, 1.0]
