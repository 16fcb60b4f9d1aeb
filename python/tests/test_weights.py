# SPDX-License-Identifier: Apache-2.0
"""Weights of other libraries, and spconv 2's names."""
import pytest
import torch
from conftest import grid_rows

import spops
import spops.nn as snn
import spops.spconv.pytorch as spconv

SHAPE = dict(kernel_size=3, dims=3, in_channels=4, out_channels=6)


def test_torchs_weights_give_torchs_convolution():
    dense = torch.nn.Conv3d(4, 6, 3, padding=1)
    layer = snn.SubMConv3d(4, 6, 3)
    layer.weight.data = spops.weights.load("torch", dense.weight, **SHAPE)
    layer.bias.data = dense.bias.detach().clone()
    x = spops.SparseTensor(torch.randn(100, 4), grid_rows(100), (12, 12, 12), 2)
    ref = dense(x.dense()).movedim(1, -1)[tuple(x.coords.long().unbind(1))]
    torch.testing.assert_close(layer(x).feats, ref, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", [n for n in spops.weights.layouts() if "cross" not in n])
def test_there_and_back(layout, dtype):
    w = torch.randn(27, 4, 6).to(dtype)
    there = spops.weights.save(layout, w, kernel_size=3, dims=3)
    back = spops.weights.load(layout, there, **SHAPE)
    assert back.dtype is dtype and back.shape == w.shape
    assert torch.equal(back.float(), w.float())


def test_weights_refused():
    w = torch.randn(27 * 4 * 6)
    with pytest.raises(ValueError, match="layout is 'spconv3', expected one of canonical torch"):
        spops.weights.load("spconv3", w, **SHAPE)
    with pytest.raises(ValueError, match="there are 10 numbers, expected 648"):
        spops.weights.load("torch", w[:10], **SHAPE)
    with pytest.raises(ValueError, match="dtype is torch.float64"):
        spops.weights.load("torch", w.double(), **SHAPE)
    with pytest.raises(NotImplementedError):
        spops.weights.load(next(n for n in spops.weights.layouts() if "cross" in n), w, **SHAPE)


def spconv_net():
    return spconv.SparseSequential(
        spconv.SubMConv3d(4, 8, 3, padding=1, bias=False, indice_key="subm1"), torch.nn.BatchNorm1d(8), torch.nn.ReLU(),
        spconv.SparseConv3d(8, 16, 3, stride=2, padding=1, bias=False, indice_key="spconv2"), torch.nn.BatchNorm1d(16), torch.nn.ReLU(),
        spconv.SparseInverseConv3d(16, 8, 3, indice_key="spconv2", bias=False),
        spconv.SparseMaxPool3d(2), spconv.ToDense(),
    )  # fmt: skip


def test_a_network_of_spconv():
    net = spconv_net()
    x = spconv.SparseConvTensor(torch.randn(120, 4), grid_rows(120), [12, 12, 12], 2)
    y = net(x)
    assert y.shape == (2, 8, 6, 6, 6)
    y.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
    assert net[0].weight.shape == (8, 3, 3, 3, 4) and x.find_indice_pair("subm1") is not None


def test_checkpoints_of_spconv_load_as_they_are():
    """Weights [C_out, *kernel_size, C_in], in the order that spops_weights_load knows as spconv2."""
    a = spconv.SubMConv3d(4, 6, 3, bias=False)
    a.load_state_dict({"weight": torch.randn(6, 3, 3, 3, 4)})
    b = snn.SubMConv3d(4, 6, 3, bias=False)
    b.weight.data = spops.weights.load("spconv2", a.weight, **SHAPE)
    x = spconv.SparseConvTensor(torch.randn(120, 4), grid_rows(120), [12, 12, 12], 2)
    assert torch.equal(a(x).features, b(x.sparse).feats)


def test_kernels_of_one_tap_are_those_of_spconv():
    """spconv 2 multiplies by [C_out, 1, 1, 1, C_in] as if its numbers were [C_in, C_out]."""
    x = spconv.SparseConvTensor(torch.randn(120, 4), grid_rows(120), [12, 12, 12], 2)
    for layer in (spconv.SubMConv3d(4, 6, 1), spconv.SparseConv3d(4, 6, 1)):
        assert layer.weight.shape == (6, 1, 1, 1, 4)
        y = layer(x).features
        torch.testing.assert_close(y, x.features @ layer.weight.view(4, 6) + layer.bias)
        y.square().sum().backward()
        torch.testing.assert_close(layer.weight.grad.view(4, 6), x.features.T @ (2 * y))
        b = snn.SubMConv3d(4, 6, 1)
        b.weight.data = spops.weights.load("spconv2", layer.weight, kernel_size=1, dims=3, in_channels=4, out_channels=6)
        b.bias.data = layer.bias.data
        torch.testing.assert_close(b(x.sparse).feats, y)
    strided = spconv.SparseConv3d(4, 6, 1, stride=2, bias=False)
    b = snn.SparseConv3d(4, 6, 1, stride=2, bias=False)
    b.weight.data = strided.weight.data.reshape(6, 4).T.reshape(1, 4, 6).clone()
    torch.testing.assert_close(strided(x).features, b(x.sparse).feats)


@pytest.mark.parametrize("act_type,alpha,act", [
    ("ReLU", 0.0, torch.relu), ("LeakyReLU", 0.3, lambda y: torch.nn.functional.leaky_relu(y, 0.3)), ("Sigmoid", 0.0, torch.sigmoid),
    (None, 0.0, lambda y: y), ("LeakyReLU", 0.0, torch.relu),
])  # fmt: skip
def test_spconvs_activations(act_type, alpha, act):
    x = spconv.SparseConvTensor(torch.randn(120, 4), grid_rows(120), [12, 12, 12], 2)
    layer, plain = spconv.SubMConv3d(4, 6, 3, act_type=act_type, act_alpha=alpha), spconv.SubMConv3d(4, 6, 3)
    plain.load_state_dict(layer.state_dict())
    y = plain(x)
    for mode in (torch.no_grad(), torch.enable_grad()):
        with mode:
            torch.testing.assert_close(layer(x).features, act(y.features), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer(x, add_input=y).features, act(2 * y.features), rtol=1e-4, atol=1e-5)


def test_what_spconv_has_and_this_has_not_is_refused():
    with pytest.raises(NotImplementedError, match="act_type='Tanh' is not there"):
        spconv.SubMConv3d(4, 6, 3, act_type="Tanh")
    with pytest.raises(ValueError, match="input has 4 channels, expected 5"):
        spconv.SubMConv3d(5, 6, 3)(spconv.SparseConvTensor(torch.randn(120, 4), grid_rows(120), [12, 12, 12], 2))
    x = spconv.SparseConvTensor(torch.randn(120, 4), grid_rows(120), [12, 12, 12], 2)
    with pytest.raises(ValueError, match="replace_feature"):
        x.features = x.features
    assert torch.equal((x + x).features, 2 * x.features)
    y = spconv.SparseConvTensor.from_dense(x.dense(channels_first=False))
    assert torch.equal(y.dense(), x.dense())
