# SPDX-License-Identifier: Apache-2.0
"""Activations and norms of layers against torch's: values, gradients, and under torch.compile."""
import pytest
import torch
from conftest import grid_rows
from torch.nn import functional as T

import spops
import spops.functional as F
import spops.nn as snn

THEIRS = {
    "none": lambda y: y, "relu": torch.relu, "leaky_relu": lambda y: T.leaky_relu(y, 0.2), "silu": T.silu, "gelu": T.gelu,
    "gelu_tanh": lambda y: T.gelu(y, approximate="tanh"), "sigmoid": torch.sigmoid,
}  # fmt: skip
KINDS = list(THEIRS)


def sparse(n=60, channels=6):
    return spops.SparseTensor(torch.randn(n, channels).requires_grad_(), grid_rows(n, (6, 6, 6)), batch_size=2)


def same_gradients(mine, theirs, inputs):
    """The gradients of two results with respect to inputs that both were made of."""
    g = torch.randn_like(theirs)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for a, b in zip(torch.autograd.grad(mine, inputs, g), torch.autograd.grad(theirs, inputs, g)):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=3e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_alone(kind):
    x = (4 * torch.randn(30, 7)).requires_grad_()
    same_gradients(F.activation(x, kind=kind, activation_slope=0.2), THEIRS[kind](x), [x])
    with torch.no_grad():
        torch.testing.assert_close(F.activation(x.bfloat16(), kind=kind, activation_slope=0.2), THEIRS[kind](x.bfloat16()), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3])
def test_of_a_convolution(kind, size):
    x = sparse()
    layer = snn.SubMConv3d(6, 5, size, activation=kind, activation_slope=0.2)
    plain = snn.SubMConv3d(6, 5, size)
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():  # in the layer's own call
        torch.testing.assert_close(layer(x).feats, THEIRS[kind](plain(x).feats), rtol=1e-4, atol=1e-5)
    g = torch.randn(60, 5)
    layer(x).feats.backward(g)
    of_x, x.feats.grad = x.feats.grad, None
    THEIRS[kind](plain(x).feats).backward(g)
    torch.testing.assert_close(of_x, x.feats.grad, rtol=2e-4, atol=3e-5)
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=2e-4, atol=1e-4)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_linear_layer(kind):
    x = torch.randn(30, 6, requires_grad=True)
    layer = snn.Linear(6, 9, activation=kind, activation_slope=0.2)
    theirs = THEIRS[kind](T.linear(x, layer.weight, layer.bias))
    same_gradients(layer(x), theirs, [x, layer.weight, layer.bias])
    with torch.no_grad():
        torch.testing.assert_close(layer(x), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_of_norms_of_rows(kind):
    x = torch.randn(40, 8, requires_grad=True)
    batch, layer, rms = (make(8, activation=kind, activation_slope=0.2) for make in (snn.BatchNorm, snn.LayerNorm, snn.RMSNorm))
    for n in (batch, layer, rms):
        torch.nn.init.uniform_(n.weight, 0.5, 2)
    same_gradients(batch(x), THEIRS[kind](T.batch_norm(x, None, None, batch.weight, batch.bias, True)), [x, batch.weight, batch.bias])
    same_gradients(layer(x), THEIRS[kind](T.layer_norm(x, (8,), layer.weight, layer.bias)), [x, layer.weight, layer.bias])
    same_gradients(rms(x), THEIRS[kind](x * rms.weight * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()), [x, rms.weight])
    batch.eval()
    torch.testing.assert_close(batch(x), THEIRS[kind](T.batch_norm(x, batch.running_mean, batch.running_var, batch.weight, batch.bias)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("kind", ["none", "silu", "relu"])
def test_norm_of_groups(groups, kind):
    """Every batch of a set on its own, as torch's with rows for pixels; batches lie in any order."""
    x = sparse()
    order = torch.randperm(60)
    x = spops.SparseTensor(x.feats, x.coords[order], batch_size=3)  # the last has no row
    layer = snn.GroupNorm(groups, 6, activation=kind) if groups < 6 else snn.InstanceNorm(6, affine=True, activation=kind)
    torch.nn.init.uniform_(layer.weight, 0.5, 2), torch.nn.init.uniform_(layer.bias)
    theirs = torch.zeros(60, 6)
    for b in range(2):
        rows = torch.nonzero(x.coords[:, 0] == b)[:, 0]
        y = T.group_norm(x.feats[rows].T[None], groups, layer.weight, layer.bias)[0].T
        theirs = theirs.index_put((rows,), THEIRS[kind](y))
    same_gradients(layer(x).feats, theirs, [x.feats, layer.weight, layer.bias])


def test_norm_of_samples_by_offsets(device):
    if device.type != "cpu":
        pytest.skip("rows of f64 run on the CPU")
    x = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    samples = F.segments_offsets(torch.tensor([0, 7, 7, 8, 20], dtype=torch.int32))
    layer = snn.GroupNorm(2, 4).double()
    parts = [T.group_norm(p.T[None], 2, eps=layer.eps)[0].T for p in x.split([7, 1, 12])]
    torch.testing.assert_close(layer(x, samples), torch.cat(parts), rtol=1e-6, atol=1e-7)
    assert torch.autograd.gradcheck(lambda v: layer(v, samples), [x])
    with pytest.raises(ValueError, match="samples is None"):
        layer(x)
    with pytest.raises(ValueError, match="expected a multiple of groups = 3"):
        F.groupnorm_statistics(x, samples, groups=3)


def test_modules_on_sparse_tensors():
    x = sparse()
    for mine, theirs in (
        (snn.SiLU(), torch.nn.SiLU()), (snn.GELU(), torch.nn.GELU()), (snn.GELU(approximate="tanh"), torch.nn.GELU("tanh")),
        (snn.LeakyReLU(0.3), torch.nn.LeakyReLU(0.3)), (snn.LeakyReLU(0.0), torch.nn.ReLU()), (snn.Sigmoid(), torch.nn.Sigmoid()),
    ):  # fmt: skip
        same_gradients(mine(x).feats, theirs(x.feats), [x.feats])


@pytest.mark.parametrize("module", [
    torch.nn.ReLU(), torch.nn.LeakyReLU(0.2), torch.nn.LeakyReLU(0.0), torch.nn.SiLU(), torch.nn.GELU(), torch.nn.GELU("tanh"), torch.nn.Sigmoid(),
], ids=str)  # fmt: skip
def test_norms_take_what_follows(module):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(6), module, torch.nn.BatchNorm1d(6), torch.nn.Tanh())
    x = torch.randn(30, 6, requires_grad=True)
    theirs = net(x)
    g = torch.randn_like(theirs)
    (of_x,) = torch.autograd.grad(theirs, x, g)
    mine = snn.convert_batchnorm(net)
    assert isinstance(mine[1], torch.nn.Identity) and mine[0].activation != "none"
    assert isinstance(mine[3], torch.nn.Tanh) and mine[2].activation == "none"
    y = mine(x)
    torch.testing.assert_close(y, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(y, x, g)[0], of_x, rtol=1e-3, atol=1e-4)


def test_what_is_said_twice_or_not_known_is_refused():
    assert snn.BatchNorm(4, relu=True).activation == "relu" and snn.LayerNorm(4, relu=True).activation == "relu"
    with pytest.raises(ValueError, match="activation is 'swish', expected one of none relu"):
        snn.SubMConv3d(4, 4, activation="swish")
    with pytest.raises(ValueError, match="relu is True and activation 'silu'"):
        snn.BatchNorm(4, relu=True, activation="silu")
    with pytest.raises(ValueError, match="channels 5 are no multiple of groups 2"):
        snn.GroupNorm(2, 5)
    with pytest.raises(ValueError, match='kind is "swish", expected none relu'):
        F.activation(torch.ones(2, 2), kind="swish")


def test_compiled():
    torch._dynamo.reset()
    x = sparse()
    net = snn.Sequential(snn.SubMConv3d(6, 8, activation="silu"), snn.GroupNorm(2, 8, activation="gelu"), snn.Linear(8, 4, activation="sigmoid"))
    spops.prepare(net, x)
    expected = net(x).feats
    (of_x,) = torch.autograd.grad(expected.square().sum(), x.feats)
    found = torch.compile(net, backend="aot_eager", fullgraph=True)(x).feats
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x.feats)[0], of_x, rtol=1e-4, atol=1e-5)
