# SPDX-License-Identifier: Apache-2.0
"""flash_attn's names: attention without a mask, over lists of rows or over batches of equal length.

Sums and softmax are in f32; f32 inputs are taken as well. Not there: causal masks, windows, ALiBi,
dropout, and queries and keys of unlike numbers, which raise NotImplementedError.
"""
from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .. import functional as F

__version__ = "2.0.0"
_plans = WeakIdKeyDictionary()  # lists of lengths -> (their version, rows, the plan)


def _plan(cu_seqlens: Tensor, rows: int):
    """The plan of lists; a network hands on one tensor of lengths from block to block."""
    known = _plans.get(cu_seqlens)
    if known is None or known[:2] != (cu_seqlens._version, rows):
        order = torch.arange(rows, dtype=torch.int32, device=cu_seqlens.device)
        known = _plans[cu_seqlens] = cu_seqlens._version, rows, F.patches(cu_seqlens, rows, order)
    return known[2]


def _refuse(dropout_p, causal, options: dict) -> None:
    usual = {"window_size": (-1, -1), "softcap": 0.0, "alibi_slopes": None, "return_attn_probs": False, "block_table": None}
    if dropout_p:
        raise NotImplementedError(f"flash_attn: dropout_p is {dropout_p}, and spops has no dropout of attention")
    if causal:
        raise NotImplementedError("flash_attn: causal is True, and spops has no masks")
    for name, value in options.items():
        if name != "deterministic" and value != usual.get(name, value):
            raise NotImplementedError(f"flash_attn: {name}={value!r} is not there")


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                           causal=False, **options) -> Tensor:  # fmt: skip
    """q, k, v [rows, heads, dim]; cu_seqlens i32 [lists + 1]; returns [rows, heads, dim]."""
    _refuse(dropout_p, causal, options)
    if q.shape != k.shape or (cu_seqlens_q is not cu_seqlens_k and not torch.equal(cu_seqlens_q, cu_seqlens_k)):
        raise NotImplementedError(f"flash_attn: queries {list(q.shape)} and keys {list(k.shape)} are not the same rows")
    rows, heads, dim = q.shape
    q, k, v = (t.reshape(rows, heads * dim) for t in (q, k, v))
    out = F.attention(q, k, v, _plan(cu_seqlens_q, rows), heads=heads, scale=softmax_scale or dim**-0.5)
    return out.view(rows, heads, dim)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, **options) -> Tensor:
    """qkv [rows, 3, heads, dim]; returns [rows, heads, dim]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, **options)


_lengths: dict = {}


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **options) -> Tensor:
    """q, k, v [batch, rows, heads, dim]; returns as q."""
    batch, rows = q.shape[:2]
    key = batch, rows, q.device
    if key not in _lengths:
        _lengths[key] = torch.arange(0, (batch + 1) * rows, max(rows, 1), dtype=torch.int32, device=q.device)
    cu, flat = _lengths[key], (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
    return flash_attn_varlen_func(*flat, cu, cu, rows, rows, dropout_p, softmax_scale, causal, **options).view(q.shape)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, **options) -> Tensor:
    """qkv [batch, rows, 3, heads, dim]; returns [batch, rows, heads, dim]."""
    return flash_attn_func(*qkv.unbind(2), dropout_p, softmax_scale, causal, **options)
