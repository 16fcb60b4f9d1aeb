# SPDX-License-Identifier: Apache-2.0
"""spconv.pytorch's names on spops: networks written for spconv 2 run with this import alone.

    import spops.spconv.pytorch as spconv

Weights have spconv 2's shape [C_out, *kernel_size, C_in], so that its checkpoints load as they are; in
memory C_out runs fastest, as the library multiplies them, so that no step lays them out anew.
What does not apply is accepted and ignored: ``algo``, ``grid``, ``voxel_num``, ``fp32_accum``,
``large_kernel_fast_algo``, ``record_voxel_count``, ``benchmark``. ``act_type`` may be ReLU, LeakyReLU
(with ``act_alpha``) or Sigmoid. Not there: quantised (qint8) layers, which raise NotImplementedError.

Source of names, defaults and sizes of outputs: spconv 2.3, spconv/pytorch (Apache-2.0).
"""
from __future__ import annotations

import math
import sys
from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor, nn

from ... import _receptive
from ... import functional as F
from ..._layers import empty_krsc
from ..._tensor import Kernel, SparseTensor
from ...nn import convolve
from ..core import AlgoHint, ConvAlgo  # noqa: F401

_ignored = frozenset(
    ("algo", "fp32_accum", "record_voxel_count", "large_kernel_fast_algo", "name", "act_beta", "grid",
     "voxel_num", "benchmark", "permanent_thrust_allocator", "enable_timer", "force_algo")
)  # fmt: skip


def _ignore(where: str, names: dict) -> None:
    for n, v in names.items():
        if n not in _ignored:
            raise NotImplementedError(f"{where}: {n}={v!r} is not there")


def _activation(where: str, act_type, alpha: float) -> tuple[str, float]:
    """The library's name, and slope, of one of cumm's activations."""
    name = {"None_": "none", "none": "none", "None": "none", "ReLU": "relu", "LeakyReLU": "leaky_relu", "Sigmoid": "sigmoid"}.get(
        str(getattr(act_type, "name", act_type))
    )
    if name is None:
        raise NotImplementedError(f"{where}: act_type={act_type!r} is not there")
    return ("relu", 0.0) if name == "leaky_relu" and alpha == 0 else (name, float(alpha) if name == "leaky_relu" else 0.0)


def _list(v):
    return v.tolist() if isinstance(v, np.ndarray) else v


class SparseConvTensor:
    """spconv's tensor: features [N, C], indices i32 [N, 1 + D] (batch first), spatial_shape, batch_size.

    ``sparse`` is the :class:`spops.SparseTensor` of it; both share their maps.
    """

    def __init__(self, features, indices, spatial_shape, batch_size, grid=None, voxel_num=None, indice_dict=None,
                 benchmark=False, _sparse: SparseTensor | None = None, **ignored):  # fmt: skip
        _ignore("SparseConvTensor", ignored)
        if _sparse is None:
            _sparse = SparseTensor(features, indices, [int(s) for s in spatial_shape], int(batch_size), keys=indice_dict)
        self.sparse = _sparse
        self.benchmark, self.grid, self.voxel_num = benchmark, grid, voxel_num

    features = property(lambda self: self.sparse.feats)
    indices = property(lambda self: self.sparse.coords)
    spatial_shape = property(lambda self: list(self.sparse.spatial_shape))
    batch_size = property(lambda self: self.sparse.batch_size)
    indice_dict = property(lambda self: self.sparse.keys)
    spatial_size = property(lambda self: math.prod(self.sparse.spatial_shape))

    @features.setter
    def features(self, value):
        raise ValueError("features cannot be set: x = x.replace_feature(features) makes another tensor")

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseConvTensor:
        """From a dense [N, *spatial, C]."""
        s = x.to_sparse(x.ndim - 1)
        return cls(s.values(), s.indices().t().contiguous().int(), s.shape[1:-1], s.shape[0])

    def _with(self, sparse: SparseTensor) -> SparseConvTensor:
        return SparseConvTensor(None, None, None, None, self.grid, self.voxel_num, benchmark=self.benchmark, _sparse=sparse)

    def replace_feature(self, feature: Tensor) -> SparseConvTensor:
        return self._with(self.sparse.replace(feature))

    def shadow_copy(self) -> SparseConvTensor:
        return self._with(self.sparse.replace(self.features))

    def minus(self) -> SparseConvTensor:
        return self.replace_feature(-self.features)

    def select_by_index(self, valid_indices: Tensor) -> SparseConvTensor:
        return SparseConvTensor(
            self.features[valid_indices], self.indices[valid_indices], self.spatial_shape, self.batch_size
        )

    def find_indice_pair(self, key):
        return None if key is None else self.indice_dict.get(key)

    def dense(self, channels_first: bool = True) -> Tensor:
        return self.sparse.dense(channels_first)

    def __add__(self, other):
        return self.replace_feature(self.features + (other.features if isinstance(other, SparseConvTensor) else other))

    __radd__ = __add__

    def __repr__(self):
        return f"SparseConvTensor[shape={self.features.shape}]"


class SparseModule(nn.Module):
    """A module that takes a SparseConvTensor."""

    def __init__(self, name=None):
        super().__init__()
        self.name = name


class SparseSequential(SparseModule):
    """A sequence of modules; those that are no SparseModule get the features."""

    def __init__(self, *args, **kwargs):
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else ((str(i), m) for i, m in enumerate(args))
        for name, module in (*named, *kwargs.items()):
            if name in self._modules:
                raise ValueError(f"there are two modules {name}")
            self.add_module(name, module)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return SparseSequential(OrderedDict(list(self._modules.items())[i]))
        return list(self._modules.values())[i]

    def __len__(self):
        return len(self._modules)

    def add(self, module, name=None):
        name = str(len(self._modules)) if name is None else name
        if name in self._modules:
            raise KeyError(f"there is a module {name}")
        self.add_module(name, module)

    def forward(self, input):
        for m in self._modules.values():
            if is_spconv_module(m) or not isinstance(input, SparseConvTensor):
                input = m(input)
            elif input.indices.shape[0] != 0:
                input = input.replace_feature(m(input.features))
        return input


def is_spconv_module(module) -> bool:
    return isinstance(module, SparseModule)


def is_sparse_conv(module) -> bool:
    return isinstance(module, SparseConvolution)


def assign_name_for_sparse_modules(module: nn.Module) -> None:
    for k, n in module.named_modules():
        if isinstance(n, SparseModule):
            n._sparse_unique_name = k


class SparseConvolution(SparseModule):
    """What spconv's convolutions share; arguments as spconv 2 has them."""

    def __init__(self, ndim, in_channels, out_channels, kernel_size=3, stride=1, padding=0, dilation=1, groups=1,
                 bias=True, subm=False, output_padding=0, transposed=False, inverse=False, indice_key=None, name=None,
                 device=None, dtype=None, act_type=None, act_alpha=0.0, **ignored):  # fmt: skip
        super().__init__(name=name)
        _ignore(type(self).__name__, ignored)
        self.activation, self.activation_slope = _activation(type(self).__name__, act_type, act_alpha)
        self.ndim, self.in_channels, self.out_channels, self.groups = ndim, in_channels, out_channels, groups
        self.subm, self.transposed, self.inverse, self.indice_key = subm, transposed, inverse, indice_key
        if subm:  # spconv centres the kernel and leaves stride and padding aside
            stride, padding = 1, 0
        self.kernel = Kernel(ndim, _list(kernel_size), _list(stride), _list(padding), _list(dilation))
        self.output_padding = Kernel(ndim, 1, 1, _list(output_padding)).padding
        like = dict(device=device, dtype=dtype)
        # spconv 2 multiplies by a kernel of one tap, [C_out, 1, 1, 1, C_in], as if its numbers were [C_in, C_out]
        self.conv1x1 = self.kernel.num_taps == 1 and groups == 1 and (subm or all(s == 1 for s in self.kernel.stride))
        shape = (out_channels, *self.kernel.size, in_channels // groups)
        self.weight = nn.Parameter(torch.empty(shape, **like) if self.conv1x1 else empty_krsc(shape[0], shape[1:-1], shape[-1], **like))
        self.bias = nn.Parameter(torch.empty(out_channels, **like)) if bias else None
        self.reset_parameters()

    kernel_size = property(lambda self: list(self.kernel.size))
    stride = property(lambda self: list(self.kernel.stride))
    padding = property(lambda self: list(self.kernel.padding))
    dilation = property(lambda self: list(self.kernel.dilation))

    def reset_parameters(self):
        bound = 1 / math.sqrt(self.in_channels * self.kernel.num_taps)
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def is_inverseable(self):
        return self.indice_key is not None and not self.subm

    def forward(self, input: SparseConvTensor, add_input: SparseConvTensor | None = None) -> SparseConvTensor:
        x = input.sparse
        if x.feats.shape[1] != self.in_channels:
            raise ValueError(f"input has {x.feats.shape[1]} channels, expected {self.in_channels}")
        how = "inverse" if self.inverse else "submanifold" if self.subm else "transposed" if self.transposed else "convolution"
        after = dict(activation=self.activation, activation_slope=self.activation_slope)
        weight = self.weight.reshape(1, self.in_channels, self.out_channels) if self.conv1x1 else self.weight
        out = input._with(convolve(
            x, weight, self.bias, self.kernel, how, self.groups, self.indice_key, self.output_padding, krsc=not self.conv1x1,
            **(after if add_input is None else {}),
        ))  # fmt: skip
        if add_input is None:
            return out
        out = out + add_input  # before the activation
        if self.activation == "none":
            return out
        return out.replace_feature(F.activation(out.features, kind=self.activation, activation_slope=self.activation_slope))

    def extra_repr(self):
        k = self.kernel
        return f"{self.in_channels}, {self.out_channels}, kernel_size={k.size}, stride={k.stride}, padding={k.padding}, dilation={k.dilation}, indice_key={self.indice_key!r}"


class _Pool(SparseModule):
    reduce = "max"

    def __init__(self, ndim, kernel_size=3, stride=1, padding=0, dilation=1, indice_key=None, subm=False, name=None, **ignored):
        super().__init__(name=name)
        _ignore(type(self).__name__, ignored)
        stride = kernel_size if stride is None else stride
        self.kernel = Kernel(ndim, _list(kernel_size), _list(stride), _list(padding), _list(dilation))
        self.indice_key, self.subm = indice_key, subm

    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        x = input.sparse
        if _receptive.recorder is not None:
            _receptive.recorder.convolution(x, self.kernel, "submanifold" if self.subm else "convolution", self.indice_key)
        relation = x.sites.within(self.kernel) if self.subm else x.sites.onto(self.kernel)
        if self.indice_key is not None:
            x.keys[self.indice_key] = relation, x.sites, self.kernel.size
        y = F.pool(x.feats, relation.pool(self.reduce, x.feats.shape[1]), reduce=self.reduce)
        return input._with(x.at(y, relation.sites or x.sites))


class SparseMaxPool(_Pool):
    """The maximum over a window."""


class SparseAvgPool(_Pool):
    """The mean over the rows in a window."""

    reduce = "mean"


class _GlobalPool(SparseModule):
    def forward(self, input: SparseConvTensor) -> Tensor:
        x = input.sparse
        return F.pool(x.feats, x.sites.global_pool(self.reduce, x.feats.shape[1]), reduce=self.reduce)


class SparseGlobalMaxPool(_GlobalPool):
    """[batch_size, C]: the maximum over all rows of a batch."""

    reduce = "max"


class SparseGlobalAvgPool(_GlobalPool):
    """[batch_size, C]: the mean over all rows of a batch. spconv 2.3.8 gives the mean of column 0 alone."""

    reduce = "mean"


def _conv_class(name, ndim, fixed):
    if "inverse" in fixed:

        def init(self, in_channels, out_channels, kernel_size, indice_key, bias=True, **more):
            SparseConvolution.__init__(self, ndim, in_channels, out_channels, kernel_size, bias=bias, indice_key=indice_key, **fixed, **more)
    else:

        def init(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, indice_key=None, **more):
            SparseConvolution.__init__(self, ndim, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, indice_key=indice_key, **fixed, **more)

    return type(name, (SparseConvolution,), {"__init__": init, "__module__": __name__, "__doc__": f"spconv's {name}."})


def _pool_class(name, ndim, base):
    def init(self, kernel_size, stride=None, padding=0, dilation=1, indice_key=None, **more):
        base.__init__(self, ndim, kernel_size, stride, padding, dilation, indice_key, **more)

    return type(name, (base,), {"__init__": init, "__module__": __name__, "__doc__": f"spconv's {name}."})


for _d in (1, 2, 3, 4):
    for _n, _fixed in (
        ("SparseConv", {}),
        ("SubMConv", {"subm": True}),
        ("SparseConvTranspose", {"transposed": True}),
        ("SparseInverseConv", {"inverse": True}),
    ):
        globals()[f"{_n}{_d}d"] = _conv_class(f"{_n}{_d}d", _d, _fixed)
    for _n, _base in (("SparseMaxPool", SparseMaxPool), ("SparseAvgPool", SparseAvgPool)):
        globals()[f"{_n}{_d}d"] = _pool_class(f"{_n}{_d}d", _d, _base)


class ToDense(SparseModule):
    """[batch_size, C, *spatial_shape]."""

    def forward(self, x: SparseConvTensor):
        return x.dense()


class RemoveGrid(SparseModule):
    """Nothing to remove: there is no grid."""

    def forward(self, x: SparseConvTensor):
        return x


class Identity(SparseModule):
    """The input."""

    def forward(self, input):
        return input


class SparseIdentity(nn.Identity):
    """The input."""


class _OnFeatures:
    def forward(self, input):
        if isinstance(input, SparseConvTensor):
            return input.replace_feature(super().forward(input.features))
        return super().forward(input)


class SparseBatchNorm(_OnFeatures, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d on features."""


class SparseSyncBatchNorm(_OnFeatures, nn.SyncBatchNorm):
    """torch.nn.SyncBatchNorm on features."""


class SparseReLU(_OnFeatures, nn.ReLU):
    """torch.nn.ReLU on features."""


class JoinTable(SparseModule):
    """Columns of tensors at the same places, side by side."""

    def forward(self, input):
        return input[0].replace_feature(torch.cat([t.features for t in input], 1))


class AddTable(SparseModule):
    """The sum of tensors at the same places."""

    def forward(self, input):
        return input[0].replace_feature(sum(t.features for t in input))


class ConcatTable(SparseModule):
    """A list: what every module makes of the input."""

    def add(self, module):
        self.add_module(str(len(self._modules)), module)
        return self

    def forward(self, input):
        return [m(input) for m in self._modules.values()]


# spconv has these names in modules too: spconv.pytorch.conv.SparseConvolution, spconv.pytorch.modules.SparseModule
for _n in ("conv", "identity", "modules", "pool", "tables"):
    sys.modules[f"{__name__}.{_n}"] = globals()[_n] = sys.modules[__name__]
