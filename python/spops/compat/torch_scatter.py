# SPDX-License-Identifier: Apache-2.0
"""torch_scatter's names: reductions of rows by segments (segment_csr) and by index (scatter), with gradients.

They reduce along dimension 0 by a list of one dimension; anything else raises NotImplementedError.
An empty segment gives 0, as there. Where several rows are the largest, the first gets the gradient.
"""
from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .. import functional as F

__version__ = "2.1.2"
_plans = WeakIdKeyDictionary()  # lists -> {what was asked: plan}, of the list's version
_NAMES = {"sum": "sum", "add": "sum", "mean": "mean", "min": "min", "max": "max", "mul": "prod"}


def _cached(list_: Tensor, key: tuple, make):
    known = _plans.get(list_)
    if known is None or known[0] != list_._version:
        known = _plans[list_] = list_._version, {}
    if key not in known[1]:
        known[1][key] = make()
    return known[1][key]


def _reduce(src: Tensor, plan, count: int, reduce: str, arg: bool):
    rows = src.reshape(src.shape[0], -1)
    shape = (count, *src.shape[1:])
    wanted = reduce in ("min", "max")
    out = F.segreduce(rows, plan, reduce=reduce, arg=True) if wanted else F.segreduce(rows, plan, reduce=reduce)
    if not wanted:
        return out.view(shape)
    out, found = out
    out = torch.where(found < 0, out.new_zeros(()), out).view(shape)  # an empty segment
    if not arg:
        return out
    return out, torch.where(found < 0, src.shape[0], found).long().view(shape)


def _checked(src: Tensor, list_: Tensor, dim: int, reduce: str, out) -> str:
    if list_.dim() != 1 or dim not in (0, -src.dim()):
        raise NotImplementedError(f"torch_scatter: a list of {list_.dim()} dimensions along dimension {dim}, expected 1 along 0")
    if out is not None:
        raise NotImplementedError("torch_scatter: out is given, and results are always new")
    if reduce not in _NAMES:
        raise ValueError(f"torch_scatter: reduce is {reduce!r}, expected one of {' '.join(_NAMES)}")
    return _NAMES[reduce]


def segment_csr(src: Tensor, indptr: Tensor, out=None, reduce: str = "sum") -> Tensor:
    """out[s] = reduce over the rows indptr[s] to indptr[s + 1] - 1 of src [rows, ...]."""
    reduce = _checked(src, indptr, 0, reduce, out)
    make = lambda: F.segments_offsets(indptr, num_rows=src.shape[0], gradients="all")  # noqa: E731
    return _reduce(src, _cached(indptr, ("csr", src.shape[0]), make), len(indptr) - 1, reduce, False)


def _scatter(src, index, dim, out, dim_size, reduce, arg):
    reduce = _checked(src, index, dim, reduce, out)
    if dim_size is None:  # waits for the device
        dim_size = int(index.max()) + 1 if len(index) else 0
    make = lambda: F.segments(index, dim_size, num_rows=src.shape[0], gradients="all")  # noqa: E731
    return _reduce(src, _cached(index, ("scatter", dim_size), make), dim_size, reduce, arg)


def scatter(src: Tensor, index: Tensor, dim: int = -1, out=None, dim_size: int | None = None, reduce: str = "sum") -> Tensor:
    """out[s] = reduce over the rows i of src whose index[i] is s."""
    return _scatter(src, index, dim, out, dim_size, reduce, False)


def scatter_sum(src, index, dim=-1, out=None, dim_size=None) -> Tensor:
    """scatter with reduce="sum"."""
    return _scatter(src, index, dim, out, dim_size, "sum", False)


scatter_add = scatter_sum


def scatter_mean(src, index, dim=-1, out=None, dim_size=None) -> Tensor:
    """scatter with reduce="mean"."""
    return _scatter(src, index, dim, out, dim_size, "mean", False)


def scatter_max(src, index, dim=-1, out=None, dim_size=None) -> tuple[Tensor, Tensor]:
    """The largest of each, and its row; src.shape[0] where there is none."""
    return _scatter(src, index, dim, out, dim_size, "max", True)


def scatter_min(src, index, dim=-1, out=None, dim_size=None) -> tuple[Tensor, Tensor]:
    """The smallest of each, and its row; src.shape[0] where there is none."""
    return _scatter(src, index, dim, out, dim_size, "min", True)
