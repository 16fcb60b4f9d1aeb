# SPDX-License-Identifier: Apache-2.0
"""spconv's names on dense convolutions of torch: the reference for networks that are run from their source.

Features are put into a grid, torch convolves the grid, and rows are read where spconv has outputs. It
shares no code with spops; the order of new rows is the grid's.
"""
from __future__ import annotations

import math
import types
from collections import OrderedDict

import torch
from torch import nn

__version__ = "2.3.8"


def _axes(v):
    return tuple(v) if isinstance(v, (list, tuple)) else (v,) * 3


class SparseConvTensor:
    def __init__(self, features, indices, spatial_shape, batch_size, indice_dict=None):
        self.features, self.indices, self.batch_size = features, indices, batch_size
        self.spatial_shape = [int(n) for n in spatial_shape]
        self.indice_dict = {} if indice_dict is None else indice_dict

    def replace_feature(self, features):
        return SparseConvTensor(features, self.indices, self.spatial_shape, self.batch_size, self.indice_dict)

    def dense(self, channels_first=True, shape=None):
        grid = self.features.new_zeros(self.batch_size, *(shape or self.spatial_shape), self.features.shape[1])
        grid = grid.index_put(tuple(self.indices.long().unbind(1)), self.features)
        return grid.movedim(-1, 1) if channels_first else grid

    def filled(self, margin):
        """dense, of what lies up to a margin behind the last row: networks leave much room there."""
        last = self.indices[:, 1:].amax(0).tolist()
        return self.dense(shape=[min(n, m + 1 + k) for n, m, k in zip(self.spatial_shape, last, margin)])


class SparseModule(nn.Module):
    pass


class SparseSequential(SparseModule):
    def __init__(self, *args):
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else ((str(i), m) for i, m in enumerate(args))
        for name, m in named:
            self.add_module(name, m)

    def forward(self, x):
        for m in self.children():
            x = m(x) if isinstance(m, SparseModule) else x.replace_feature(m(x.features))
        return x


class Identity(nn.Identity, SparseModule):
    pass


class SparseConvolution(SparseModule):
    subm = inverse = False

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, bias=True, indice_key=None):
        super().__init__()
        self.kernel_size, self.stride, self.padding = _axes(kernel_size), _axes(stride), _axes(padding)
        if self.subm:
            self.stride, self.padding = (1, 1, 1), tuple(k // 2 for k in self.kernel_size)
        self.weight = nn.Parameter(torch.empty(out_channels, *self.kernel_size, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.indice_key = indice_key
        nn.init.normal_(self.weight, std=1 / math.sqrt(math.prod(self.kernel_size) * in_channels))

    def forward(self, x):
        w = self.weight.movedim(-1, 1)
        if self.inverse:
            indices, shape, stride, padding = x.indice_dict[self.indice_key]
            grid = nn.functional.conv_transpose3d(x.dense(), w.transpose(0, 1), None, stride, padding)
            grid = nn.functional.pad(grid, [p for n, m in zip(reversed(shape), reversed(grid.shape[2:])) for p in (0, max(n - m, 0))])
        else:
            grid = nn.functional.conv3d(x.filled(self.kernel_size), w, None, self.stride, self.padding)
            indices, shape = x.indices, x.spatial_shape
        if not self.subm and not self.inverse:
            x.indice_dict[self.indice_key] = x.indices, x.spatial_shape, self.stride, self.padding
            there = x.replace_feature(torch.ones_like(x.features[:, :1])).filled(self.kernel_size)
            reached = nn.functional.conv3d(there, torch.ones_like(w[:1, :1]), None, self.stride, self.padding) > 0.5
            window = zip(shape, self.padding, self.kernel_size, self.stride)
            indices, shape = reached[:, 0].nonzero().int(), [(n + 2 * p - k) // s + 1 for n, p, k, s in window]
        rows = grid.movedim(1, -1)[tuple(indices.long().unbind(1))]
        if self.bias is not None:
            rows = rows + self.bias
        return SparseConvTensor(rows, indices, shape, x.batch_size, x.indice_dict)


class SparseConv3d(SparseConvolution):
    pass


class SubMConv3d(SparseConvolution):
    subm = True


class SparseInverseConv3d(SparseConvolution):
    inverse = True


class ToDense(SparseModule):
    def forward(self, x):
        return x.dense()


def is_spconv_module(m):
    return isinstance(m, SparseModule)


def modules() -> dict[str, types.ModuleType]:
    """Under the names that imports look for."""

    def module(name, **values):
        m = types.ModuleType(name)
        vars(m).update(values)
        return m

    mine = {k: v for k, v in globals().items() if not k.startswith("_") or k == "__version__"}
    parts = {n: module("spconv.pytorch." + n, **mine) for n in ("modules", "conv")}
    pytorch = module("spconv.pytorch", **{**mine, **parts})
    constants = module("spconv.constants")
    return {
        "spconv": module("spconv", pytorch=pytorch, constants=constants, __version__=__version__),
        "spconv.pytorch": pytorch, "spconv.constants": constants, **{"spconv.pytorch." + n: m for n, m in parts.items()},
    }  # fmt: skip
