# SPDX-License-Identifier: Apache-2.0
"""Other libraries' names: what stands for flash_attn and torch_scatter, and how it is installed."""
import sys

import pytest
import torch

import spops.compat
from spops.compat import flash_attn, torch_scatter


def test_install(monkeypatch, device):
    for name in [n for n in sys.modules if n.split(".")[0] in spops.compat.NAMES]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    try:
        spops.compat.install("spconv")
        import spconv
        import spconv.pytorch as theirs
        from spconv.pytorch.modules import SparseModule

        assert theirs.SubMConv3d.__module__ == "spops.spconv.pytorch" and issubclass(theirs.SubMConv3d, SparseModule)
        assert spconv.pytorch is theirs and float(spconv.__version__[2:]) >= 2.2 and "flash_attn" not in sys.modules
        spops.compat.install("spconv")
        sys.modules["torch_scatter"] = sys
        with pytest.raises(ImportError, match="torch_scatter is imported already"):
            spops.compat.install()
        assert "flash_attn" not in sys.modules
        with pytest.raises(ValueError, match="no 'apex', expected one of spconv flash_attn torch_scatter"):
            spops.compat.install("apex")
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] in spops.compat.NAMES:
                del sys.modules[name]


def plain_attention(q, k, v, scale):
    q, k, v = (t.double().transpose(-3, -2) for t in (q, k, v))
    return (torch.softmax(scale * q @ k.mT, -1) @ v).transpose(-3, -2)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_flash_attn(dtype, tolerance, device):
    qkv = torch.randn(2, 30, 3, 4, 16).to(dtype).requires_grad_()
    ref = plain_attention(*qkv.unbind(2), 16**-0.5)
    g = torch.randn(ref.shape, dtype=torch.float64)
    (ref_grad,) = torch.autograd.grad(ref, qkv, g)
    cu = torch.tensor([0, 30, 60], dtype=torch.int32)
    for out in (
        flash_attn.flash_attn_qkvpacked_func(qkv), flash_attn.flash_attn_func(*qkv.unbind(2)),
        flash_attn.flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), cu, 30).view(ref.shape),
        flash_attn.flash_attn_varlen_func(*qkv.flatten(0, 1).unbind(1), cu, cu.clone(), 30, 30, softmax_scale=0.25).view(ref.shape),
    ):  # fmt: skip
        (grad,) = torch.autograd.grad(out, qkv, g.to(dtype))
        assert out.dtype is dtype
        torch.testing.assert_close(out.double(), ref, rtol=tolerance, atol=tolerance)
        assert (grad - ref_grad).norm() < 2 * tolerance * ref_grad.norm()


def test_flash_attn_to_other_rows(device):
    """Keys of other lengths, with fewer heads: as one sequence, in a batch, and with lengths that change."""
    q, kv = torch.randn(2, 30, 4, 16).requires_grad_(), torch.randn(2, 2, 11, 2, 16).requires_grad_()
    k, v = kv.repeat_interleave(2, 3)
    ref = plain_attention(q, k, v, 0.25)
    g = torch.randn(ref.shape)
    ref_grads = torch.autograd.grad(ref, (q, kv), g.double(), retain_graph=True)
    cu, cu_k = torch.tensor([0, 30, 60], dtype=torch.int32), torch.tensor([0, 11, 22], dtype=torch.int32)
    flat = [t.flatten(0, 1) for t in (q, *kv)]
    for out in (flash_attn.flash_attn_func(q, *kv), flash_attn.flash_attn_varlen_func(*flat, cu, cu_k, 30, 11).view(ref.shape)):
        torch.testing.assert_close(out.double(), ref, rtol=1e-5, atol=1e-5)
        for grad, expected in zip(torch.autograd.grad(out, (q, kv), g), ref_grads):
            torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)
    cu_k[1] = 1
    out = flash_attn.flash_attn_varlen_func(*flat, cu, cu_k, 30, 21)
    torch.testing.assert_close(out[:30], flat[2][:1].repeat_interleave(2, 1).expand(30, -1, -1))


def test_lists_of_flash_attn_may_change(device):
    qkv = torch.randn(20, 3, 1, 16)
    cu = torch.tensor([0, 5, 20], dtype=torch.int32)
    a = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 15)
    cu[1] = 10
    b = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 10)
    ref = torch.cat([plain_attention(*qkv[i : i + 10].unbind(1), 0.25) for i in (0, 10)])
    assert not torch.allclose(a, b)
    torch.testing.assert_close(b.double(), ref, rtol=1e-5, atol=1e-5)


def test_what_flash_attn_lacks(device):
    qkv = torch.randn(1, 4, 3, 1, 16)
    for words, options in (
        ("dropout_p is 0.1", dict(dropout_p=0.1)), ("causal is True", dict(causal=True)), ("window_size=", dict(window_size=(8, 8))),
        ("softcap=3.0", dict(softcap=3.0)),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match=words):
            flash_attn.flash_attn_qkvpacked_func(qkv, **options)
    q, k, _ = qkv.unbind(2)
    with pytest.raises(NotImplementedError, match="1 heads of queries are no multiple of 2 of keys"):
        flash_attn.flash_attn_func(q, k.repeat(1, 1, 2, 1), k.repeat(1, 1, 2, 1))
    flash_attn.flash_attn_qkvpacked_func(qkv, deterministic=True, window_size=(-1, -1))


@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "min", "max", "mul"])
def test_segments_and_scatter(reduce, device):
    src = torch.rand(40, 3, 2, requires_grad=True)
    ptr = torch.tensor([0, 3, 3, 17, 40])
    index = torch.arange(4).repeat_interleave(ptr.diff())
    ref = []
    for rows in src.split(ptr.diff().tolist()):
        name = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}.get(reduce, reduce)
        ref.append(getattr(rows, name)(0) if len(rows) else torch.full((3, 2), 1.0 if reduce == "mul" else 0.0))
    ref = torch.stack(ref)
    g = torch.randn(ref.shape)
    (ref_grad,) = torch.autograd.grad(ref, src, g)
    shuffled = torch.randperm(40)
    for out in (torch_scatter.segment_csr(src, ptr, reduce=reduce), torch_scatter.scatter(src[shuffled], index[shuffled], 0, reduce=reduce)):
        torch.testing.assert_close(out, ref, rtol=1e-5, atol=1e-6)
        (grad,) = torch.autograd.grad(out, src, g)
        torch.testing.assert_close(grad, ref_grad, rtol=1e-4, atol=1e-6)


def test_scatter_says_which(device):
    src, index = torch.tensor([[3.0, 1.0], [5.0, 0.0], [4.0, 9.0]]), torch.tensor([2, 0, 2])
    out, arg = torch_scatter.scatter_max(src, index, 0)
    assert out.tolist() == [[5, 0], [0, 0], [4, 9]] and arg.tolist() == [[1, 1], [3, 3], [2, 2]]
    out, arg = torch_scatter.scatter_min(src, index, 0, dim_size=4)
    assert out.tolist() == [[5, 0], [0, 0], [3, 1], [0, 0]] and arg.tolist() == [[1, 1], [3, 3], [0, 0], [3, 3]]
    assert torch_scatter.scatter_add(src, index, 0).tolist() == torch_scatter.scatter_sum(src, index, 0).tolist()
    assert torch_scatter.scatter_mean(src, index, 0)[2].tolist() == [3.5, 5.0]
    with pytest.raises(NotImplementedError, match="along dimension -1, expected 1 along 0"):
        torch_scatter.scatter(src, index)
    with pytest.raises(ValueError, match="reduce is 'var'"):
        torch_scatter.segment_csr(src, torch.tensor([0, 3]), reduce="var")
    with pytest.raises(NotImplementedError, match="out is given"):
        torch_scatter.segment_csr(src, torch.tensor([0, 3]), out=src)
