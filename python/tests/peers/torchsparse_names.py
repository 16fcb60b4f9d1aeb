# SPDX-License-Identifier: Apache-2.0
"""torchsparse's names on spops, as far as its tests read them: SparseTensor, nn.Conv3d, utils.

Tests put these modules under torchsparse's name. Kernels of odd sizes are centred and keep their
weights with axis 0 fastest; those of even sizes begin at the place itself and have the last axis
fastest, and an input's outputs reach as far as windows that begin inside of it.
"""
from __future__ import annotations

import math
import types

import torch

import spops
from spops import functional as F
from spops._tensor import Kernel, Sites
from spops.nn import convolve


def make_ntuple(x, ndim: int) -> tuple[int, ...]:
    return tuple(x) if isinstance(x, (list, tuple)) else (int(x),) * ndim


class SparseTensor:
    """torchsparse's tensor: feats [N, C], coords [N, 1 + 3], batch first."""

    def __init__(self, feats, coords, stride=1, spatial_range=None):
        self.feats, self.coords, self.spatial_range = feats, coords, spatial_range
        self.stride = make_ntuple(stride, 3)

    F = property(lambda self: self.feats)
    C = property(lambda self: self.coords)


class Conv3d(torch.nn.Module):
    """torchsparse.nn.Conv3d without transposition; `padding` is what its layers take on their own."""

    def __init__(self, in_channels, out_channels, kernel_size=3, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.kernel_size, self.stride, self.dilation = (make_ntuple(v, 3) for v in (kernel_size, stride, dilation))
        self.kernel = torch.nn.Parameter(torch.empty(math.prod(self.kernel_size), in_channels, out_channels).uniform_(-0.1, 0.1))
        self.bias = torch.nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: SparseTensor) -> SparseTensor:
        window = Kernel(3, self.kernel_size, self.stride, [(k - 1) // 2 for k in self.kernel_size], self.dilation)
        extents = [int(n) + 1 for n in x.coords[:, 1:].max(0).values]
        reach = [n + (k - 1 if k % 2 == 0 else 0) for n, k in zip(extents, self.kernel_size)]
        y = spops.SparseTensor(x.feats, x.coords, extents)
        w = spops.weights.load("torchsparse", self.kernel, kernel_size=self.kernel_size, dims=3, in_channels=self.kernel.shape[1], out_channels=self.kernel.shape[2])
        if self.stride == (1, 1, 1):
            map = F.kernel_map(y.set, y.set, kind="convolution", **window.arguments())
            feats = F.sparseconv(x.feats, w, F.sparseconv_plan(map, backward=True), bias=self.bias)
            return SparseTensor(feats, x.coords, x.stride)
        out = convolve(spops.SparseTensor(x.feats, sites=Sites(y.coords, reach, y.batch_size, y.stride)), w, self.bias, window, "convolution")
        return SparseTensor(out.feats, out.coords, tuple(a * b for a, b in zip(x.stride, self.stride)))


def to_dense(feats, coords, spatial_range):
    """[*spatial_range, C]; the first extent is the number of batches."""
    x = spops.SparseTensor(feats, coords, spatial_range[1:], spatial_range[0])
    return x.dense(channels_first=False)


def modules() -> dict[str, types.ModuleType]:
    """Under the names that torchsparse's files import."""

    def module(name, **values):
        m = types.ModuleType(name)
        vars(m).update(values)
        return m

    class Config:  # what torchsparse may choose among, and here chooses nothing
        kmap_mode = dataflow = ifsort = split_mask_num = None

    config = types.SimpleNamespace(get_default_conv_config=Config, set_global_conv_config=lambda c: None)
    functional = module("torchsparse.nn.functional", conv_config=config, Dataflow=types.SimpleNamespace(ImplicitGEMM=1))
    nn = module("torchsparse.nn", Conv3d=Conv3d, functional=functional)
    utils = module("torchsparse.utils", make_ntuple=make_ntuple, to_dense=to_dense)
    whole = module("torchsparse", SparseTensor=SparseTensor, nn=nn, utils=utils)
    return {m.__name__: m for m in (whole, nn, functional, utils)}
