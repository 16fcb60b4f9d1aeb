# SPDX-License-Identifier: Apache-2.0
"""Every gradient against finite differences in f64: torch.autograd.gradcheck as everybody calls it.

Rows of f64 run on the CPU. Calls are drawn from the list as test_rows draws them: a new row with a
gradient is checked as it is written.
"""
import pytest
import test_rows
import torch
from conftest import grid_rows
from test_rows import drawn

import spops
import spops.functional as F
import spops.nn as snn
from spops import _generate
from spops._rows import ENUM, PLAN, operators

SMALL = {"N": 24, "C": 4, "Ci": 4, "Co": 4, "H": 12, "B": 9}


def takes_f64(a, op):
    words = a.type.removeprefix("sum(").removesuffix(")").split("|")
    return any("real" in op.variables.get(w, w).split("|") for w in words)


def variants(op, row):
    """One attribute at a time that is not its default, of those that the gradient has too."""
    yield {}
    names = {a.name for a in row.backward.attributes} | ({"activation"} if row.is_sum else set())
    for a in op.attributes:
        if a.name not in names or a.name == "math":
            continue
        if a.kind == ENUM:
            yield from ({a.name: v} for v in a.values if v != a.default)
        elif a.type == "bool":
            yield {a.name: True}
        elif a.name == "groups":
            yield {a.name: 2}


def cases():
    """(operator, attributes, whether optional inputs are there)"""
    for op in operators.values():
        row = _generate.Row(op)
        if not op.gradient or not any(takes_f64(a, op) for a in op.inputs):
            continue
        has_optional = any(a.optional and a.name in row.differentiable for a in op.inputs)
        for changed in variants(op, row):
            for with_optional in (False, True)[: 1 + has_optional]:
                words = [op.name, *(f"{n}={v}" for n, v in changed.items()), *["optional"] * with_optional]
                yield pytest.param(op.name, changed, with_optional, id=" ".join(words))


@pytest.mark.parametrize("name,changed,with_optional", list(cases()))
def test_gradient(name, changed, with_optional, device, monkeypatch):
    if device.type != "cpu":
        pytest.skip("rows of f64 run on the CPU")
    op = operators[name]
    row = _generate.Row(op)
    monkeypatch.setattr(test_rows, "SIZES", {**test_rows.SIZES, **SMALL})
    monkeypatch.setitem(test_rows.VALUES, name, {**test_rows.VALUES.get(name, {}), **changed})
    values = drawn(op, with_optional)
    values.update({a.name: True for a in row.extra})  # of the gradient alone: that what is given is constant
    needed = {a.needs for a in op.inputs if a.name in row.differentiable}
    of = []
    for a in op.inputs:
        n = _generate.python_name(a.name)
        if a.kind == PLAN or n not in values:
            continue
        if a.optional and a.name not in row.differentiable and a.name not in needed:
            del values[n]
        elif takes_f64(a, op):
            values[n] = values[n].double()
            if a.name in row.differentiable:
                of.append(n)

    def f(*v):
        y = getattr(F, name)(**{**values, **dict(zip(of, v))})
        y = next(t for t in (y if isinstance(y, tuple) else (y,)) if t.is_floating_point())
        return y.masked_fill(y.isinf(), 0)  # of segments without a term, where a difference is NaN

    assert torch.autograd.gradcheck(f, [values[n].requires_grad_() for n in of])


def test_rotary_attention(device):
    if device.type != "cpu":
        pytest.skip("rows of f64 run on the CPU")
    p = F.patches(torch.tensor([0, 5, 6, 9]), 9, query_rows=torch.randperm(9))
    places = torch.rand(9, 3) * 20
    rows = [torch.randn(9, 12, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *v: F.attention(*v, p, heads=2, positions=places), rows)


def test_attention_to_other_rows(device):
    """Keys of another matrix, two heads of q to one of them, norms with weights of all heads and of each."""
    if device.type != "cpu":
        pytest.skip("rows of f64 run on the CPU")
    p = F.patches(torch.tensor([0, 3, 3, 7]), 8, query_rows=torch.randperm(8)[:7], num_key_rows=11,
                  key_offsets=torch.tensor([0, 5, 6, 9]), key_rows=torch.randint(0, 11, (9,)))  # fmt: skip
    places, key_places = torch.rand(8, 3) * 20, torch.rand(11, 3) * 20
    sizes = [(8, 24), (11, 12), (11, 12), (1, 6), (2, 6)]
    rows = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in sizes]

    def f(q, k, v, q_weight, k_weight):
        return F.attention(q, k, v, p, heads=4, kv_heads=2, positions=places, key_positions=key_places, q_weight=q_weight,
                           k_weight=k_weight, epsilon=0.1)  # fmt: skip

    assert torch.autograd.gradcheck(f, rows)


def test_layers_of_double(device):
    """A network that was turned to double keeps the digits of double, biases too."""
    if device.type != "cpu":
        pytest.skip("rows of f64 run on the CPU")
    rows = grid_rows(60, (6, 6, 6))
    feats = torch.randn(60, 3, dtype=torch.float64, requires_grad=True)
    conv, norm, linear = snn.SubMConv3d(3, 4, 3).double(), snn.BatchNorm(4, eps=2.0**-10).double(), snn.Linear(4, 2).double()

    def net(v):
        return linear(norm(conv(spops.SparseTensor(v, rows)))).feats

    k = conv.weight.reshape(3, 3, 3, 3, 4).permute(4, 3, 0, 1, 2)
    r = rows.long()
    grid = torch.zeros(2, 6, 6, 6, 3, dtype=torch.float64).index_put((r[:, 0], r[:, 1], r[:, 2], r[:, 3]), feats)
    dense = torch.nn.functional.conv3d(grid.permute(0, 4, 1, 2, 3), k, conv.bias, padding=1)
    dense = torch.nn.functional.batch_norm(dense[r[:, 0], :, r[:, 1], r[:, 2], r[:, 3]], None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
    expected = dense @ linear.weight.T + linear.bias
    torch.testing.assert_close(net(feats), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(net, feats)
    parameters = [p for m in (conv, norm, linear) for p in m.parameters()]
    mine = torch.autograd.grad(net(feats).sin().sum(), [feats, *parameters])
    theirs = torch.autograd.grad(expected.sin().sum(), [feats, *parameters])
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
