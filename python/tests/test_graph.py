# SPDX-License-Identifier: Apache-2.0
"""Capacities: one graph for scans of every size, against exact plans."""
import pytest
import torch
from conftest import grid_rows

import spops
import spops.nn as snn

SHAPE, BATCHES = (12, 12, 12), 2


def scan(n, seed=1, c=4):
    g = torch.Generator("cpu").manual_seed(seed)
    feats = torch.randn(n, c, generator=g, device="cpu").to(torch.get_default_device())
    return spops.SparseTensor(feats, grid_rows(n, SHAPE, BATCHES, seed), SHAPE, BATCHES)


def network(last=()):
    return snn.Sequential(
        snn.SubMConv3d(4, 8, 3), snn.BatchNorm(8, relu=True), snn.SparseConv3d(8, 16, 2, stride=2, key="d"), torch.nn.ReLU(),
        snn.SubMConv3d(16, 16, 3), snn.SparseInverseConv3d(16, 8, 2, key="d"), *last,
    )  # fmt: skip


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_scans_of_every_size():
    net = network()
    net.eval()
    g = spops.Graph(net, spops.Capacity(rows=400, levels={2: 300}))
    with torch.no_grad():
        for i, n in enumerate((300, 120, 400, 1, 0, 350)):
            x = scan(n, seed=i)
            y = g(x)
            assert y.feats.shape == (400, 8) and int(y.num_rows) == n == int(y.mask.sum())
            assert g.overflow == []
            z = y.compact()
            ref = net(x)
            close(z.feats, ref.feats)
            assert torch.equal(z.coords, x.coords) and not y.feats[n:].any()
            close(y.dense(), ref.dense())


@pytest.mark.parametrize("last", ["GroupNorm", "InstanceNorm", "RMSNorm"])
def test_norms_of_rows_in_use(last):
    norm = snn.GroupNorm(2, 8, activation="silu") if last == "GroupNorm" else getattr(snn, last)(8, activation="gelu")
    net = network((norm,)).eval()
    g = spops.Graph(net, spops.Capacity(rows=300))
    with torch.no_grad():
        for i, n in enumerate((250, 1, 90, 300)):
            x = scan(n, seed=i)
            close(g(x).compact().feats, net(x).feats)


@pytest.mark.parametrize("last", ["max", "mean", "global"])
def test_pools(last):
    pools = {"max": snn.MaxPool3d(2), "mean": snn.AvgPool3d(2), "global": snn.GlobalPool("mean")}
    net = network((pools[last],)).eval()
    g = spops.Graph(net, spops.Capacity(rows=300))
    with torch.no_grad():
        for i, n in enumerate((250, 90, 300)):
            x = scan(n, seed=i)
            y, ref = g(x), net(x)
            if last == "global":
                close(y, ref)
            else:
                close(y.dense(), ref.dense())


def test_transposed():
    net = snn.Sequential(snn.SparseConv3d(4, 8, 2, stride=2), snn.SparseConvTranspose3d(8, 4, 2, stride=2))
    g = spops.Graph(net, spops.Capacity(rows=120, levels={1: 960}))
    with torch.no_grad():
        for i, n in enumerate((60, 120)):
            x = scan(n, seed=i)
            close(g(x).dense(), net(x).dense())
            assert g.overflow == []


def test_training_steps_are_those_of_exact_plans():
    torch.manual_seed(3)
    a = network((snn.SubMConv3d(8, 1),))
    b = network((snn.SubMConv3d(8, 1),))
    b.load_state_dict(a.state_dict())
    steps = []
    for net in (a, b):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

        def step(x, target, net=net, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=False)
            error = (net(x).feats - target).square()
            loss = (error * x.mask[:, None]).sum() / (len(x) if x.num_rows is None else x.num_rows)
            loss.backward()
            optimizer.step()
            return loss

        steps.append(step)
    g = spops.Graph(steps[0], spops.Capacity(rows=300))
    for i, n in enumerate((200, 300, 80, 260, 150)):
        x = scan(n, seed=i)
        target = x.feats.sum(1, keepdim=True)
        close(g(x, target).detach().reshape(()), steps[1](x, target).detach().reshape(()))
    for (k, v), w in zip(a.state_dict().items(), b.state_dict().values()):
        torch.testing.assert_close(v, w, rtol=1e-3, atol=1e-5, msg=k)


def test_what_does_not_fit_is_said():
    net = network().eval()
    g = spops.Graph(net, spops.Capacity(rows=300, pairs=500, levels={2: 20}))
    with torch.no_grad():
        g(scan(300))
        found = g.overflow
    assert any(f.startswith("rows at stride (2, 2, 2): coords_get_info_sync") for f in found), found
    assert any(f.startswith("pairs of the submanifold map of kernel (3, 3, 3) at stride (1, 1, 1)") for f in found), found
    with pytest.raises(ValueError, match="the scan has 301 rows, expected at most the capacity of 300"):
        g(scan(301))
    with pytest.raises(ValueError, match="the scan's shape, batch size, channels"):
        g(scan(100, c=5))
    with pytest.raises(ValueError, match="no spatial_shape"):
        spops.Graph(net, spops.Capacity(10))(spops.SparseTensor(torch.ones(1, 4), torch.zeros(1, 4, dtype=torch.int32)))
    with pytest.raises(ValueError, match="torch's batch norm counts rows"):
        spops.Graph(snn.Sequential(torch.nn.BatchNorm1d(4)), spops.Capacity(10))(scan(5))


def test_a_plan_with_capacities_is_a_value():
    import pickle

    plans = []
    net = snn.SubMConv3d(4, 8, 3)

    def f(x):
        plans.append(x.sites.within(net.kernel).conv(8))
        return net(x)

    x = scan(100)
    with torch.no_grad():
        y = spops.Graph(f, spops.Capacity(rows=200))(x)
        plan = pickle.loads(pickle.dumps(plans[0]))
        import spops.functional as F

        feats = torch.zeros(200, 4)
        feats[:100] = x.feats
        again = F.sparseconv(feats, net.weight, plan, bias=net.bias)
    assert plan.token.dtype is torch.int32 and torch.equal(again[:100], y.feats[:100])
