# SPDX-License-Identifier: Apache-2.0
"""flash_attn's names: attention without a mask, over lists of rows or over batches of equal length.

Sums and softmax are in f32; f32 inputs are taken as well. Not there: causal masks, windows, ALiBi,
dropout, and heads of queries that are no multiple of those of keys, which raise NotImplementedError.
"""
from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .. import functional as F

__version__ = "2.0.0"
_plans = WeakIdKeyDictionary()  # lists of lengths -> (their version, rows, the plan)


def _plan(cu_seqlens: Tensor, rows: int, keys: Tensor, key_rows: int):
    """The plan of lists; a network hands on the same tensors of lengths from block to block."""
    of = cu_seqlens._version, rows, None if keys is cu_seqlens else keys.data_ptr(), keys._version, key_rows
    known = _plans.get(cu_seqlens)
    if known is None or known[0] != of:
        options = {}
        if keys is not cu_seqlens:
            options = dict(key_offsets=keys, key_rows=torch.arange(key_rows, dtype=torch.int32, device=keys.device), num_key_rows=key_rows)
        order = torch.arange(rows, dtype=torch.int32, device=cu_seqlens.device)
        known = _plans[cu_seqlens] = of, F.patches(cu_seqlens, rows, order, **options), keys  # whose address stays its own
    return known[1]


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
    (rows, heads, dim), (key_rows, kv_heads, _) = q.shape, k.shape
    if heads % kv_heads:
        raise NotImplementedError(f"flash_attn: {heads} heads of queries are no multiple of {kv_heads} of keys")
    if key_rows == rows and cu_seqlens_k is not cu_seqlens_q and torch.equal(cu_seqlens_q, cu_seqlens_k):
        cu_seqlens_k = cu_seqlens_q
    plan = _plan(cu_seqlens_q, rows, cu_seqlens_k, key_rows)
    q, k, v = (t.reshape(t.shape[0], t.shape[1] * dim) for t in (q, k, v))
    out = F.attention(q, k, v, plan, heads=heads, kv_heads=kv_heads, scale=softmax_scale or dim**-0.5)
    return out.view(rows, heads, dim)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, **options) -> Tensor:
    """qkv [rows, 3, heads, dim]; returns [rows, heads, dim]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, **options)


_lengths: dict = {}


def _even(t: Tensor) -> Tensor:
    """Lengths of a batch of equal ones."""
    key = *t.shape[:2], t.device
    if key not in _lengths:
        batch, rows = t.shape[:2]
        _lengths[key] = torch.arange(batch + 1, dtype=torch.int32, device=t.device) * rows
    return _lengths[key]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **options) -> Tensor:
    """q, k, v [batch, rows, heads, dim], k and v also of other numbers of rows and heads; returns as q."""
    flat = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
    out = flash_attn_varlen_func(*flat, _even(q), _even(k), q.shape[1], k.shape[1], dropout_p, softmax_scale, causal, **options)
    return out.view(q.shape)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, **options) -> Tensor:
    """qkv [batch, rows, 3, heads, dim]; returns [batch, rows, heads, dim]."""
    return flash_attn_func(*qkv.unbind(2), dropout_p, softmax_scale, causal, **options)
