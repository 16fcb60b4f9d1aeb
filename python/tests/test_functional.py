# SPDX-License-Identifier: Apache-2.0
"""Values, gradients, errors and compilation of functions made from rows."""
import gc

import pytest
import torch
from conftest import grid_rows

import spops.functional as F


def conv_parts(n=200, c_in=8, c_out=16, dtype=torch.float32, **kernel):
    rows = grid_rows(n)
    s = F.coords(rows)
    kernel = {"size": 3, **kernel}
    m = F.kernel_map(s, contents="table|order|pairs|csr|reverse", **kernel)
    plan = F.sparseconv_plan(m, backward=True)
    x = torch.randn(n, c_in, dtype=dtype)
    w = torch.randn(27, c_in, c_out, dtype=dtype) / 15
    return rows, plan, x, w


def dense_conv(rows, x, w, shape=(12, 12, 12), batches=2):
    """The same submanifold convolution by torch, in f64."""
    c_in, c_out = w.shape[1:]
    r = rows.long()
    grid = torch.zeros(batches, *shape, c_in, dtype=torch.float64)
    grid = grid.index_put((r[:, 0], r[:, 1], r[:, 2], r[:, 3]), x.double())
    k = w.double().reshape(3, 3, 3, c_in, c_out).permute(4, 3, 0, 1, 2)
    y = torch.nn.functional.conv3d(grid.permute(0, 4, 1, 2, 3), k, padding=1)
    return y[r[:, 0], :, r[:, 1], r[:, 2], r[:, 3]]


def differences(f, x, steps=12, eps=1e-2):
    """(numeric, analytic) derivatives of sum(f(x) * fixed) along random directions."""
    y = f(x)
    fixed = torch.randn_like(y)
    (g,) = torch.autograd.grad((y * fixed).sum(), x)
    pairs = []
    for _ in range(steps):
        d = torch.randn_like(x)
        with torch.no_grad():
            up, down = (f(x + eps * d).double() * fixed).sum(), (f(x - eps * d).double() * fixed).sum()
        pairs.append((float((up - down) / (2 * eps)), float((g.double() * d).sum())))
    return torch.tensor(pairs, dtype=torch.float64)


def assert_gradient(f, x, tolerance=2e-2):
    p = differences(f, x)
    scale = p.abs().max().clamp(min=1e-3)
    assert (p[:, 0] - p[:, 1]).abs().max() <= tolerance * scale


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_segreduce_values_and_gradient(reduce):
    keys = torch.randint(0, 20, (300,))  # i64, as torch makes them
    plan = F.segments(keys, 20, num_rows=300, gradients="all")
    assert plan.kind == "segments" and plan.num_segments == 20
    x = torch.randn(300, 6, requires_grad=True)
    y = F.segreduce(x, plan, reduce=reduce)
    how = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}[reduce]
    ref = torch.zeros(20, 6).scatter_reduce(0, keys[:, None].expand(-1, 6), x.detach(), how, include_self=False)
    torch.testing.assert_close(y.detach(), ref, rtol=1e-5, atol=1e-5)
    y.square().sum().backward()
    x2 = x.detach().clone().requires_grad_()
    ref = torch.zeros(20, 6).scatter_reduce(0, keys[:, None].expand(-1, 6), x2, how, include_self=False)
    ref.square().sum().backward()
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-4, atol=1e-4)


def test_weights_of_segreduce_have_gradients():
    keys = torch.randint(0, 9, (50,), dtype=torch.int32)
    plan = F.segments(keys, 9, num_rows=50, num_weights=50, gradients="all")
    x, w = torch.randn(50, 4), torch.randn(50, 1, requires_grad=True)
    assert_gradient(lambda v: F.segreduce(x, plan, w=v), w)


def test_optional_outputs():
    plan = F.segments(torch.tensor([0, 0, 1]), 2, num_rows=3)
    x = torch.tensor([[1.0], [3.0], [2.0]])
    y, arg = F.segreduce(x, plan, reduce="max", arg=True)
    assert y.tolist() == [[3.0], [2.0]] and arg.dtype == torch.int32 and arg.shape == (2, 1)
    out = torch.empty(2, 1)
    assert F.segreduce(x, plan, out=out) is out and out.tolist() == [[4.0], [2.0]]


def conv_bound(ref, bias, magnitude, dtype, terms):
    """How far a convolution may lie from the exact one (spops/sparseconv.h, Numerics).

    ref is the exact result, magnitude the sum of |x| |w| over its terms. Products of f16 and bf16 are
    exact in f32, and a sum of n of them in any order is off by at most n roundings of the magnitude;
    tensor cores cut where others round, so that one is 2^-23 of it. The sum may be rounded to the rows'
    dtype before the bias is added, and the result is rounded to it.
    """
    last = torch.finfo(dtype).eps / 2 if dtype is not torch.float32 else 2.0**-23
    sums = terms * 2.0**-23 * magnitude
    return sums + last * ((ref - bias).abs() + sums) + (last + 2.0**-23) * (ref.abs() + bias.abs() + sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sparseconv_against_torch(dtype):
    rows, plan, x, w = conv_parts(dtype=dtype)
    bias = torch.randn(16)
    ref = dense_conv(rows, x, w) + bias
    bound = conv_bound(ref, bias.double(), dense_conv(rows, x.abs(), w.abs()), dtype, 27 * 8)

    def close(y):
        assert y.dtype is dtype
        worst = ((y.double() - ref).abs() / bound).max().item()
        assert worst <= 1, worst

    y = F.sparseconv(x, w, plan, bias=bias)
    close(y)
    assert torch.equal(F.sparseconv(x, w.reshape(-1, 16), plan, bias=bias), y)
    assert torch.equal(F.sparseconv(x.t().contiguous().t(), w, plan, bias=bias), y)  # columns with gaps are copied
    for first, columns in ((4, 20), (8, 24), (1, 11)):  # rows with gaps, which begin at 8, 16 and 2 bytes of f16
        wide = torch.full((len(x), columns), float("nan"), dtype=dtype)
        wide[:, first : first + 8] = x
        part = wide[:, first : first + 8]
        got = F.sparseconv(part, w, plan, bias=bias)
        close(got)  # not of y's bits: memory that is aligned otherwise may go through another dataflow
        assert torch.equal(F.sparseconv(part, w, plan, bias=bias), got)


@pytest.mark.parametrize("of", ["x", "w", "bias", "scale", "shift", "residual"])
def test_sparseconv_gradients(of):
    _, plan, x, w = conv_parts()
    args = dict(x=x, w=w, bias=torch.randn(16), scale=torch.rand(16) + 0.5, shift=torch.randn(16), residual=torch.randn(200, 16))
    if of in ("x", "w", "bias"):
        args = {k: args[k] for k in ("x", "w", "bias")}
    args[of].requires_grad_()
    assert_gradient(lambda v: F.sparseconv(conv=plan, **{**args, of: v}), args[of])


def test_attention_against_torch():
    n, heads, width = 96, 4, 32
    offsets = torch.tensor([0, 40, 41, 96])
    p = F.patches(offsets, n)
    q, k, v = (torch.randn(n, width, requires_grad=True) for _ in range(3))
    o = F.attention(q, k, v, p, heads=heads)
    parts = []
    for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        h = [t[a:b].view(b - a, heads, -1).transpose(0, 1)[None] for t in (q, k, v)]
        parts.append(torch.nn.functional.scaled_dot_product_attention(*h)[0].transpose(0, 1).reshape(b - a, width))
    ref = torch.cat(parts)
    torch.testing.assert_close(o, ref, rtol=1e-4, atol=1e-4)
    g = torch.randn_like(o)
    for mine, theirs in zip(torch.autograd.grad(o, (q, k, v), g), torch.autograd.grad(ref, (q, k, v), g)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    o2, lse = F.attention(q.detach().view(n, heads, -1), k.detach().view(n, heads, -1), v.detach().view(n, heads, -1), p, heads=heads, lse=True)
    assert o2.shape == (n, heads, width // heads) and lse.shape == (n, heads)
    torch.testing.assert_close(o2.reshape(n, width), o.detach())


def test_norms_against_torch():
    x = torch.randn(64, 12, requires_grad=True)
    gamma, beta = (torch.randn(12, requires_grad=True) for _ in range(2))
    y = F.layernorm(x, gamma, beta, epsilon=1e-5)
    ref = torch.nn.functional.layer_norm(x, (12,), gamma, beta, 1e-5)
    torch.testing.assert_close(y, ref, rtol=1e-4, atol=1e-4)
    g = torch.randn_like(y)
    for mine, theirs in zip(torch.autograd.grad(y, (x, gamma, beta), g), torch.autograd.grad(ref, (x, gamma, beta), g)):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    mean, var = F.batchnorm_statistics(x.detach())
    y = F.batchnorm(x, mean, var, gamma, beta, epsilon=1e-5)
    ref = torch.nn.functional.batch_norm(x, None, None, gamma, beta, True, eps=1e-5)
    torch.testing.assert_close(y, ref, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(torch.autograd.grad(y, (x, gamma, beta), g), torch.autograd.grad(ref, (x, gamma, beta), g)):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    y = F.batchnorm(x, mean, var, gamma, beta, epsilon=1e-5, fixed_statistics=True)
    ref = torch.nn.functional.batch_norm(x, mean, var, gamma, beta, False, eps=1e-5)
    for mine, theirs in zip(torch.autograd.grad(y, (x, gamma, beta), g), torch.autograd.grad(ref, (x, gamma, beta), g)):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_linear_and_quantize():
    x, w, b = torch.randn(30, 8, requires_grad=True), torch.randn(8, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    y = F.linear(x, w, bias=b)
    torch.testing.assert_close(y, x @ w + b, rtol=1e-5, atol=1e-5)
    g = torch.randn_like(y)
    for mine, theirs in zip(torch.autograd.grad(y, (x, w, b), g), torch.autograd.grad(x @ w + b, (x, w, b), g)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    scale = F.quantize_scale(x.detach())
    q = F.quantize(x.detach(), scale, dtype=torch.float8_e4m3fn)
    assert q.dtype is torch.float8_e4m3fn
    torch.testing.assert_close(F.dequantize(q, scale, dtype=torch.float32), x.detach(), rtol=0.1, atol=0.01)
    with pytest.raises(TypeError, match="dtype of out is not given"):
        F.quantize(x.detach(), scale)


def test_errors_are_the_librarys():
    _, plan, x, w = conv_parts()
    with pytest.raises(ValueError, match=r"sparseconv_execute: w is \[208, 16\], expected \[216, 16\]"):
        F.sparseconv(x, w[:26], plan)
    with pytest.raises(ValueError, match=r'activation is "rel", expected none relu'):
        F.sparseconv(x, w, plan, activation="rel")
    with pytest.raises(TypeError, match="conv is of type Tensor, expected a Plan of kind sparseconv"):
        F.sparseconv(x, w, x)
    with pytest.raises(ValueError, match="a plan of another kind, expected sparseconv"):
        F.sparseconv(x, w, F.coords(grid_rows(200)))
    with pytest.raises(ValueError, match=r"keys\[1\] is 3"):
        F.segments(torch.tensor([0, 3]), 3)
    with pytest.raises(NotImplementedError, match="has no implicit_gemm|expected it for implicit_gemm"):
        F.sparseconv_plan(F.kernel_map(F.coords(grid_rows(10)), size=3, contents="table|pairs"), dataflow="implicit_gemm")
    with pytest.raises(ValueError, match="out is given, and a gradient"):
        F.sparseconv(x.clone().requires_grad_(), w, plan, out=torch.empty(200, 16))
    y = F.sparseconv(x.clone().requires_grad_(), w, plan)
    (g,) = torch.autograd.grad(y.square().sum(), y.grad_fn.next_functions[0][0].variable, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|twice"):
        g.sum().backward()


def test_plans_live_as_long_as_they_are_needed():
    voxels = F.voxels(torch.rand(100, 3) * 4, size_m=1.0, gradients="all", max_cols=4)
    segments = F.voxels_segments(voxels)
    x = torch.randn(100, 4, requires_grad=True)
    n = segments.num_segments
    del voxels
    gc.collect()
    y = F.segreduce(x, segments, reduce="mean")
    del segments
    gc.collect()
    y.sum().backward()
    assert y.shape == (n, 4) and torch.isfinite(x.grad).all()


def test_plan_fields():
    s = F.coords(grid_rows(50))
    assert s.dims == 3 and s.max_rows == 50 and len(s.lower) == 5 and "max_rows" in dir(s)
    assert s.bytes > 0 and "coords" in repr(s)
    with pytest.raises(AttributeError, match="no field nothing"):
        s.nothing
    rows, num = F.coords_rows(s)
    assert torch.equal(rows, grid_rows(50)) and num.item() == 50


def test_indices_of_64_bits():
    rows = grid_rows(50).long() - torch.tensor([0, 6, 6, 6])
    assert torch.equal(F.coords_rows(F.coords(rows))[0], rows.int())
    for far in (2**40, -(2**40)):
        with pytest.raises(ValueError, match="expected 32 bits"):
            F.coords(torch.tensor([[0, 0, 0, 0], [0, far, 0, 0]]))
        with pytest.raises(ValueError, match="expected 32 bits"):
            F.segments(torch.tensor([0, far]), 3)


def test_autocast(device):
    rows, plan, x, w = conv_parts()
    x.requires_grad_(), w.requires_grad_()
    with torch.autocast(device.type, torch.bfloat16):
        y = F.sparseconv(x, w, plan)
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype is torch.float32 and w.grad.dtype is torch.float32


def test_compile_is_whole_and_serves_all_sizes():
    torch._dynamo.reset()
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager(gm, inputs)

    def f(x, w, bias, plan):
        return torch.relu(F.sparseconv(x, w, plan, bias=bias)).square().mean()

    compiled = torch.compile(f, backend=backend, fullgraph=True)
    for n in (100, 150, 220, 310):
        _, plan, x, w = conv_parts(n)
        bias = torch.randn(16)
        for t in (x, w, bias):
            t.requires_grad_()
        a, b = f(x, w, bias, plan), compiled(x, w, bias, plan)
        assert torch.equal(a, b)
        for g, h in zip(torch.autograd.grad(a, (x, w, bias)), torch.autograd.grad(b, (x, w, bias))):
            torch.testing.assert_close(g, h)
    assert len(graphs) <= 2, f"{len(graphs)} graphs for four sizes"


def test_export():
    _, plan, x, w = conv_parts()

    class Layer(torch.nn.Module):
        def forward(self, x, token, fields):
            return torch.ops.spops.sparseconv(x, w, None, None, None, None, None, token, fields, 1, 0, 0, False, 0.0, None)

    args = (x, plan.token, list(plan.ints))
    assert torch.equal(torch.export.export(Layer(), args).module()(*args), F.sparseconv(x, w, plan))


def test_opcheck():
    _, plan, x, w = conv_parts()
    op = torch.ops.spops.sparseconv.default
    args = (x, w, None, None, None, None, None, plan.token, plan.ints, 1, 0, 0, False, 0.0, None)
    torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def test_making_a_plan_inside_of_a_compiled_region_is_refused():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="make plans outside of compiled regions"):
        torch.compile(lambda k: F.segments(k, 3).num_segments, backend="eager", fullgraph=True)(torch.tensor([0, 1]))


def test_meta_tensors():
    _, plan, x, w = conv_parts()
    y = torch.ops.spops.sparseconv(x.to("meta"), w.to("meta"), None, None, None, None, None, plan.token, plan.ints, 1, 0, 0, False, 0.0, None)
    assert y.shape == (200, 16) and y.device.type == "meta"


def test_gradient_checkpointing():
    from torch.utils.checkpoint import checkpoint

    _, plan, x, w = conv_parts()
    x.requires_grad_()
    y = checkpoint(lambda v: F.sparseconv(v, w, plan), x, use_reentrant=False)
    (g,) = torch.autograd.grad(y.square().sum(), x)
    (h,) = torch.autograd.grad(F.sparseconv(x, w, plan).square().sum(), x)
    assert torch.equal(g, h)


@pytest.mark.parametrize("transposed", [False, True])
def test_mvmr_of_other_columns(transposed):
    out, into, which = (torch.tensor(r, dtype=torch.int32) for r in ([0, 1, 1, 2], [0, 1, 2, 3], [0, 1, 0, 1]))
    plan = F.triplets(which, num_matrices=2, num_in=4, num_out=3, out_rows=out, in_rows=into)
    x, w = torch.randn(4, 5), torch.randn(2, 5, 6)
    expected = torch.zeros(3, 6)
    for o, i, k in zip(out.tolist(), into.tolist(), which.tolist()):
        expected[o] += x[i] @ w[k]
    given = (w.transpose(1, 2) if transposed else w).reshape(-1, 5 if transposed else 6).contiguous()
    torch.testing.assert_close(F.mvmr(x, given, plan, transposed=transposed), expected, rtol=1e-5, atol=1e-5)


def test_layers_of_codes(device):
    """From codes to codes: what the float layers give, but for the roundings of both operands and of the output."""
    rows = torch.cat([torch.zeros(300, 1), torch.randint(0, 9, (300, 3), device="cpu")], 1).int().unique(dim=0).to(device)
    conv = F.sparseconv_plan(F.kernel_map(F.coords(rows), size=3))
    x, w = torch.randn(len(rows), 32), torch.randn(27 * 32, 16) / 30
    dense, bias = torch.randn(32, 16) / 5, torch.randn(16)
    for dtype, name in (torch.float8_e4m3fn, "f8e4m3"), (torch.int8, "i8"):
        scale = F.quantize_scale(x, dtype=name)
        codes = F.quantize(x, scale, dtype=dtype)
        packed, w_scales = F.quantize_weights(w, taps=27, dtype=dtype)
        assert packed.shape == (27 * 16, 32) and packed.dtype == dtype
        out = F.sparseconv_quantized(codes, packed, conv, scale, w_scales, bias, activation="relu", dtype=torch.float32)
        torch.testing.assert_close(out, F.sparseconv(x, w, conv, bias=bias, activation="relu"), rtol=0, atol=0.12)
        packed, w_scales = F.quantize_weights(dense, dtype=dtype)
        out_scale = torch.full((1,), 0.06)
        small = F.linear_quantized(codes, packed, scale, w_scales, bias, out_scale=out_scale, dtype=dtype)
        assert small.dtype == dtype and small.shape == (len(rows), 16)
        torch.testing.assert_close(F.dequantize(small, out_scale, dtype=torch.float32), F.linear(x, dense, bias), rtol=0.08, atol=0.35)
