# SPDX-License-Identifier: Apache-2.0
"""Layers of sparse networks. They take a :class:`spops.SparseTensor` and give one.

Names end in the number of axes: ``SubMConv1d`` to ``SubMConv4d``, likewise ``SparseConv``,
``SparseConvTranspose``, ``GenerativeConv``, ``SparseInverseConv``, ``MaxPool``, ``AvgPool``.
Weights of convolutions are [taps, C_in / groups, C_out], taps with the last axis fastest
(spops/weights.h); spops.weights brings those of other libraries into that form.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from . import _layers, _receptive
from . import functional as F
from ._plan import Plan
from ._tensor import Kernel, Sites, SparseTensor, per_axis


ACTIVATIONS = "none", "relu", "leaky_relu", "silu", "gelu", "gelu_tanh", "sigmoid"


def _activation_of(activation: str, relu: bool = False) -> str:
    """The activation that a layer is given; relu: as it was said when there was no other."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, expected one of {' '.join(ACTIVATIONS)}")
    if relu and activation not in ("none", "relu"):
        raise ValueError(f"relu is True and activation {activation!r}, expected one of the two")
    return "relu" if relu else activation


def _reads_all() -> None:
    """Where the receptive field is asked for: this layer reads all rows."""
    if _receptive.recorder is not None:
        _receptive.recorder.everything()


def convolve(
    x: SparseTensor, w: Tensor, bias, kernel: Kernel, how: str, groups: int = 1, key=None, output_padding=None, krsc=False,
    activation: str = "none", activation_slope: float = 0.0,
):  # fmt: skip
    """A sparse convolution; how: submanifold, convolution, transposed, or inverse (of key).

    w is [taps, C_in / groups, C_out], or with krsc [C_out, *sizes, C_in / groups].
    """
    if _receptive.recorder is not None:
        _receptive.recorder.convolution(x, kernel, how, key)
    sites = x.sites
    bias = _layers.vector(bias, _layers.work_dtype(x.feats))
    if how != "inverse" and kernel.is_pointwise and groups == 1:
        dtype = _layers.work_dtype(x.feats)
        w = _layers.matrices(w, krsc)[0].to(dtype)
        return x.replace(F.linear(x.feats.to(dtype), w, bias=bias, activation=activation, activation_slope=activation_slope))
    if how == "inverse":
        if key not in x.keys:
            raise KeyError(f"no layer before this one has the key {key!r}")
        down, target, size = x.keys[key]
        if size != kernel.size:
            raise ValueError(f"the layer with the key {key!r} has kernel_size {size}, this one {kernel.size}")
        relation, sites = down.inverse(target), target
    elif key is not None and key in x.keys and x.keys[key][1] is sites:
        relation, _, size = x.keys[key]
        if size != kernel.size:
            raise ValueError(f"the layer with the key {key!r} has kernel_size {size}, this one {kernel.size}")
    elif how == "submanifold":
        relation = sites.within(kernel)
    else:
        relation = sites.onto(kernel, how == "transposed", output_padding)
    if key is not None and how != "inverse":
        x.keys[key] = relation, sites, kernel.size
    feats = _layers.convolution(x.feats, w, bias, relation, groups, krsc, activation, activation_slope)
    return x.at(feats, relation.sites or sites)


class Convolution(nn.Module):
    """What all convolutions share; use the classes with a number of axes in their names.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size : int, or one for each axis, 1 to 7
    stride, padding, dilation : int, or one for each axis; padding "same": dilation (kernel_size / 2)
    groups : int
    bias : bool
    key : hashable, optional
        Names the layer's map, for the inverse convolution that goes the same way back.
    activation : one of ACTIVATIONS
        Of what the layer gives; a part of its call where no gradient is wanted.
    activation_slope : float
        Of leaky_relu; 0: 0.01.
    """

    def __init__(self, dims, how, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1,
                 groups=1, bias=True, key=None, output_padding=0, device=None, dtype=None, activation="none", activation_slope=0.0):  # fmt: skip
        super().__init__()
        self.activation, self.activation_slope = _activation_of(activation), activation_slope
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"channels {in_channels} and {out_channels} are not multiples of groups {groups}")
        self.how, self.key, self.groups = how, key, groups
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel = Kernel(dims, kernel_size, stride, padding, dilation)
        self.output_padding = per_axis(output_padding, dims, "output_padding")
        like = dict(device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(self.kernel.num_taps, in_channels // groups, out_channels, **like))
        self.bias = nn.Parameter(torch.empty(out_channels, **like)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn's convolutions: uniform in +-1 / sqrt(fan in)."""
        bound = 1 / math.sqrt(self.kernel.num_taps * self.in_channels / self.groups)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: SparseTensor) -> SparseTensor:
        return convolve(
            x, self.weight, self.bias, self.kernel, self.how, self.groups, self.key, self.output_padding,
            activation=self.activation, activation_slope=self.activation_slope,
        )  # fmt: skip

    def extra_repr(self) -> str:
        k = self.kernel
        return f"{self.in_channels}, {self.out_channels}, kernel_size={k.size}, stride={k.stride}, padding={k.padding}, dilation={k.dilation}, groups={self.groups}, key={self.key!r}, activation={self.activation}"


class Pool(nn.Module):
    """Reduces the rows in a window; rows that are not there do not count. reduce: max, mean, sum, min."""

    def __init__(self, dims, reduce, kernel_size, stride=None, padding=0, dilation=1):
        super().__init__()
        self.reduce = reduce
        self.kernel = Kernel(dims, kernel_size, kernel_size if stride is None else stride, padding, dilation)

    def forward(self, x: SparseTensor) -> SparseTensor:
        if _receptive.recorder is not None:
            _receptive.recorder.convolution(x, self.kernel, "convolution", None)
        relation = x.sites.onto(self.kernel)
        return x.at(F.pool(x.feats, relation.pool(self.reduce, x.feats.shape[1]), reduce=self.reduce), relation.sites)

    def extra_repr(self) -> str:
        return f"reduce={self.reduce}, kernel_size={self.kernel.size}, stride={self.kernel.stride}"


class GlobalPool(nn.Module):
    """[batch_size, C] from all rows of each batch. reduce: max, mean, sum, min."""

    def __init__(self, reduce: str = "mean"):
        super().__init__()
        self.reduce = reduce

    def forward(self, x: SparseTensor) -> Tensor:
        _reads_all()
        return F.pool(x.feats, x.sites.global_pool(self.reduce, x.feats.shape[1]), reduce=self.reduce)


def _named(base, name: str, dims: int, doc: str, how: str):
    if base is Convolution and how == "inverse":

        def init(self, in_channels, out_channels, kernel_size, key, groups=1, bias=True, device=None, dtype=None, activation="none", activation_slope=0.0):
            Convolution.__init__(self, dims, how, in_channels, out_channels, kernel_size, groups=groups, bias=bias, key=key, device=device, dtype=dtype, activation=activation, activation_slope=activation_slope)
    elif base is Convolution and how == "submanifold":

        def init(self, in_channels, out_channels, kernel_size=3, dilation=1, groups=1, bias=True, key=None, device=None, dtype=None, activation="none", activation_slope=0.0):
            Convolution.__init__(self, dims, how, in_channels, out_channels, kernel_size, 1, 0, dilation, groups, bias, key, device=device, dtype=dtype, activation=activation, activation_slope=activation_slope)
    elif base is Convolution:

        def init(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, key=None, output_padding=0, device=None, dtype=None, activation="none", activation_slope=0.0):
            Convolution.__init__(self, dims, how, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, key, output_padding, device, dtype, activation, activation_slope)
    else:

        def init(self, kernel_size, stride=None, padding=0, dilation=1):
            Pool.__init__(self, dims, how, kernel_size, stride, padding, dilation)

    init.__name__, init.__qualname__ = "__init__", f"{name}.__init__"
    text = f"{doc} {dims} {'axis' if dims == 1 else 'axes'}.\n{base.__doc__.partition(chr(10))[2] if base is Convolution else base.__doc__}"
    return type(name, (base,), {"__init__": init, "__doc__": text, "__module__": __name__})


for _dims in (1, 2, 3, 4):
    for _name, _base, _how, _doc in (
        ("SubMConv", Convolution, "submanifold", "Convolution whose outputs are at the places of its inputs."),
        ("SparseConv", Convolution, "convolution", "Convolution whose outputs are at every place that a tap reaches."),
        ("SparseConvTranspose", Convolution, "transposed", "Transposed convolution onto every place that it reaches."),
        ("GenerativeConv", Convolution, "transposed", "Transposed convolution onto every place that it reaches."),
        ("SparseInverseConv", Convolution, "inverse", "The way back of the convolution that has the same key."),
        ("MaxPool", Pool, "max", "Maximum over a window."),
        ("AvgPool", Pool, "mean", "Mean over the rows in a window."),
    ):
        globals()[f"{_name}{_dims}d"] = _named(_base, f"{_name}{_dims}d", _dims, _doc, _how)


def _over_rows(module_call, x):
    return x.replace(module_call(x.feats)) if isinstance(x, SparseTensor) else module_call(x)


class BatchNorm(nn.Module):
    """Batch norm of rows, with running statistics as torch.nn.BatchNorm1d has, and an activation.

    activation is one of ACTIVATIONS; relu=True says "relu".

    Takes a SparseTensor or a Tensor [N, C] in f32, f16 or bf16; statistics and parameters are f32. A
    network of double has all of them in f64, on the CPU.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, relu: bool = False,
                 activation: str = "none", activation_slope: float = 0.0):  # fmt: skip
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.activation, self.activation_slope = _activation_of(activation, relu), activation_slope
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def _rows(self, x: Tensor, num_rows: Tensor | None = None) -> Tensor:
        if self.training:
            _reads_all()
            self.num_batches_tracked += 1
            if num_rows is not None:  # rows after those in use do not count
                mean, var = F.batchnorm_statistics(
                    x.detach(), num_rows, momentum=self.momentum, running_mean=self.running_mean, running_var=self.running_var
                )[:2]
                return F.batchnorm(
                    x, mean, var, self.weight, self.bias, num_rows, epsilon=self.eps, activation=self.activation, activation_slope=self.activation_slope
                )
            return _layers.batchnorm(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps, self.activation, self.activation_slope
            )
        return F.batchnorm(
            x, self.running_mean, self.running_var, self.weight, self.bias, num_rows, epsilon=self.eps, activation=self.activation,
            activation_slope=self.activation_slope, fixed_statistics=True,
        )  # fmt: skip

    def forward(self, x):
        return x.replace(self._rows(x.feats, x.num_rows)) if isinstance(x, SparseTensor) else self._rows(x)


def _fused(module) -> tuple[str, float] | None:
    """The activation, with its slope, that a module of torch's is; None: none of the library's."""
    kind = type(module)
    if kind is nn.LeakyReLU:
        return ("leaky_relu", module.negative_slope) if module.negative_slope != 0 else ("relu", 0.0)
    if kind is nn.GELU:
        return ("gelu" if module.approximate == "none" else "gelu_tanh"), 0.0
    name = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Sigmoid: "sigmoid"}.get(kind)
    return None if name is None else (name, 0.0)


def convert_batchnorm(module: nn.Module) -> nn.Module:
    """A network whose norms are the library's: every torch.nn.BatchNorm1d in it becomes a BatchNorm.

    Parameters, running statistics and names stay, so that checkpoints load before and after. A ReLU,
    LeakyReLU, SiLU, GELU or Sigmoid of torch's that follows a norm in a sequence becomes a part of it
    (its place stays, as an Identity). Returns module, changed in place, or what takes its place.
    """
    if type(module) is nn.BatchNorm1d and module.track_running_stats and module.momentum is not None:
        norm = BatchNorm(module.num_features, module.eps, module.momentum, module.affine)
        norm.weight, norm.bias = module.weight, module.bias
        norm.running_mean, norm.running_var = module.running_mean, module.running_var
        norm.num_batches_tracked = module.num_batches_tracked
        return norm.train(module.training)
    names = list(module._modules)
    is_sequence = isinstance(module, nn.Sequential) or type(module).__name__.endswith("Sequential")
    for name, after in zip(names, [*names[1:], None]):
        if module._modules[name] is None:
            continue
        child = module._modules[name] = convert_batchnorm(module._modules[name])
        fused = _fused(module._modules[after]) if is_sequence and after is not None and type(child) is BatchNorm else None
        if fused is not None and child.activation == "none":
            child.activation, child.activation_slope = fused
            module._modules[after] = nn.Identity()
    return module


class LayerNorm(nn.Module):
    """Layer norm of rows, and an activation (relu=True: "relu"). Takes a SparseTensor or a Tensor [N, C]."""

    def __init__(self, channels: int, eps: float = 1e-5, relu: bool = False, activation: str = "none", activation_slope: float = 0.0):
        super().__init__()
        self.eps, self.activation, self.activation_slope = eps, _activation_of(activation, relu), activation_slope
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        def rows(r):
            return F.layernorm(r, self.weight, self.bias, epsilon=self.eps, activation=self.activation, activation_slope=self.activation_slope)

        return _over_rows(rows, x)


class RMSNorm(nn.Module):
    """Rows by the root of the mean of their squares, and an activation. Takes a SparseTensor or a Tensor [N, C]."""

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = True, activation: str = "none", activation_slope: float = 0.0):
        super().__init__()
        self.eps, self.activation, self.activation_slope = eps, _activation_of(activation), activation_slope
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None

    def forward(self, x):
        def rows(r):
            return F.rmsnorm(r, self.weight, epsilon=self.eps, activation=self.activation, activation_slope=self.activation_slope)

        return _over_rows(rows, x)


class GroupNorm(nn.Module):
    """Norm of groups of channels over the rows of each sample, and an activation.

    Parameters
    ----------
    groups, channels : int
        channels is a multiple of groups; groups = channels: instance norm.
    eps, affine : as torch.nn.GroupNorm's
    activation : one of ACTIVATIONS

    ``forward(x)``: a SparseTensor, whose samples are its batches. ``forward(rows, samples)``: a Tensor
    [N, C], and a plan of kind segments, a segment for each sample (``F.segments_offsets(offsets)``).
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True, activation: str = "none",
                 activation_slope: float = 0.0):  # fmt: skip
        super().__init__()
        if channels % groups:
            raise ValueError(f"channels {channels} are no multiple of groups {groups}")
        self.groups, self.eps = groups, eps
        self.activation, self.activation_slope = _activation_of(activation), activation_slope
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, x, samples: Plan | None = None):
        if isinstance(x, SparseTensor):
            return x.replace(self._rows(x.feats, x.sites.samples))
        if samples is None:
            raise ValueError("GroupNorm: samples is None, expected a plan of kind segments beside a Tensor")
        return self._rows(x, samples)

    def _rows(self, x: Tensor, samples: Plan) -> Tensor:
        _reads_all()
        mean, var = F.groupnorm_statistics(x.detach(), samples, groups=self.groups)
        return F.groupnorm(
            x, mean, var, samples, gamma=self.weight, beta=self.bias, groups=self.groups, epsilon=self.eps,
            activation=self.activation, activation_slope=self.activation_slope,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"groups={self.groups}, eps={self.eps}, activation={self.activation}"


class InstanceNorm(GroupNorm):
    """Norm of every channel over the rows of each sample, and an activation; GroupNorm says what it takes."""

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = False, activation: str = "none", activation_slope: float = 0.0):
        super().__init__(channels, channels, eps, affine, activation, activation_slope)


class Linear(nn.Linear):
    """torch.nn.Linear on the rows of a SparseTensor or a Tensor [N, C], by the library's kernels, and an activation."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device=None, dtype=None, activation: str = "none",
                 activation_slope: float = 0.0):  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.activation_slope = _activation_of(activation), activation_slope

    def forward(self, x):
        def rows(r):
            return F.linear(
                r, self.weight.to(r.dtype), bias=_layers.vector(self.bias, r.dtype), w_transposed=True,
                activation=self.activation, activation_slope=self.activation_slope,
            )  # fmt: skip

        return _over_rows(rows, x)


class ReLU(nn.ReLU):
    """torch.nn.ReLU on the features of a SparseTensor."""

    def forward(self, x):
        return _over_rows(super().forward, x)


class LeakyReLU(nn.LeakyReLU):
    """torch.nn.LeakyReLU on the features of a SparseTensor."""

    def forward(self, x):
        slope = self.negative_slope
        return _over_rows(lambda r: F.activation(r, kind="leaky_relu", activation_slope=slope) if slope else torch.relu(r), x)


class SiLU(nn.SiLU):
    """torch.nn.SiLU on the features of a SparseTensor."""

    def forward(self, x):
        return _over_rows(lambda r: F.activation(r, kind="silu"), x)


class GELU(nn.GELU):
    """torch.nn.GELU, exact or with approximate="tanh", on the features of a SparseTensor."""

    def forward(self, x):
        kind = "gelu" if self.approximate == "none" else "gelu_tanh"
        return _over_rows(lambda r: F.activation(r, kind=kind), x)


class Sigmoid(nn.Sigmoid):
    """torch.nn.Sigmoid on the features of a SparseTensor."""

    def forward(self, x):
        return _over_rows(lambda r: F.activation(r, kind="sigmoid"), x)


class Sequential(nn.Sequential):
    """torch.nn.Sequential; modules of torch get the features of a SparseTensor."""

    def forward(self, x):
        for m in self:
            if isinstance(x, SparseTensor) and x.num_rows is not None and isinstance(m, nn.modules.batchnorm._BatchNorm):
                raise ValueError("torch's batch norm counts rows that are not in use: expected spops.nn.BatchNorm (convert_batchnorm)")
            takes_sparse = type(m).__module__.startswith("spops.") or not type(m).__module__.startswith("torch.")
            x = m(x) if takes_sparse or not isinstance(x, SparseTensor) else x.replace(m(x.feats))
        return x


class Pruning(nn.Module):
    """Keeps the rows where a mask is true."""

    def forward(self, x: SparseTensor, keep: Tensor) -> SparseTensor:
        """keep: bool [rows]."""
        set = F.coords_pruned(keep.to(torch.uint8), x.set)
        rows = torch.nonzero(keep)[:, 0]
        sites = Sites(x.coords[rows], x.spatial_shape, x.sites._batch_size, x.stride, set)
        return SparseTensor(x.feats[rows], sites=sites)


def _rows_in_use(x: SparseTensor, name: str) -> None:
    if x.num_rows is not None:
        raise NotImplementedError(f"{name}: a tensor with a capacity (spops.Graph) is not supported")


class Grow(nn.Module):
    """Growth around marked rows: new rows of zeros at the places of windows around them (feature diffusion).

    size : int or a sequence
        Places of a window along each axis, odd.
    dilation : int or a sequence
    """

    def __init__(self, size=3, dilation=1):
        super().__init__()
        self.size, self.dilation = size, dilation

    def forward(self, x: SparseTensor, marks: Tensor) -> SparseTensor:
        """marks: bool [rows]. The rows of x keep their numbers; new ones come after. Waits for the device."""
        _rows_in_use(x, "Grow")
        if _receptive.recorder is not None:
            _receptive.recorder.convolution(x, Kernel(x.dims, self.size, 1, 0, self.dilation), "submanifold", None)
        set = F.coords_grown(marks.to(torch.uint8), x.set, size=self.size, dilation=self.dilation, **x.sites._box(x.spatial_shape))
        rows, _ = F.coords_rows(set)
        feats = torch.cat([x.feats, x.feats.new_zeros(len(rows) - len(x), x.feats.shape[1])])
        return SparseTensor(feats, sites=Sites(rows, x.spatial_shape, x.sites._batch_size, x.stride, set))


class ChannelToSpace(nn.Module):
    """Channels of a row become the rows of its children: factor^D children have C / factor^D channels each.

    factor : int
        Of every axis. Child t of a place p is at factor p + the digits of t, the last axis fastest.
    """

    def __init__(self, factor: int = 2):
        super().__init__()
        self.factor = factor

    def forward(self, x: SparseTensor, keep: Tensor | None = None, like: SparseTensor | None = None) -> SparseTensor:
        """keep: bool [rows, factor^D], the children that there are, such as ``logits > 0``; like: at the places of
        that tensor instead; neither: all children. Waits for the device unless ``like`` is given."""
        f = self.factor
        if _receptive.recorder is not None:
            _receptive.recorder.convolution(x, Kernel(x.dims, f, f, 0, 1), "transposed", None)
        if like is not None:
            return like.at(F.channel_to_space(x.feats, x.set, like.set, factor=f), like.sites)
        _rows_in_use(x, "ChannelToSpace")
        children = f**x.dims
        if keep is None:
            keep = torch.ones(len(x), children, dtype=torch.uint8, device=x.device)
        if tuple(keep.shape) != (len(x), children):
            raise ValueError(f"ChannelToSpace: keep is {list(keep.shape)}, expected [{len(x)}, {children}]")
        shape = None if x.spatial_shape is None else tuple(f * n for n in x.spatial_shape)
        set = F.coords_children(keep.to(torch.uint8).reshape(-1), x.set, factor=f, **x.sites._box(shape))
        rows, _ = F.coords_rows(set)
        stride = tuple(max(s // f, 1) for s in x.stride)
        return SparseTensor(
            F.channel_to_space(x.feats, x.set, set, factor=f), sites=Sites(rows, shape, x.sites._batch_size, stride, set)
        )


class SpaceToChannel(nn.Module):
    """Rows of children become channels of their coarse row, zeros for children that are not there.

    factor : int
        As of :class:`ChannelToSpace`, whose inverse it is.
    """

    def __init__(self, factor: int = 2):
        super().__init__()
        self.factor = factor

    def forward(self, x: SparseTensor, like: SparseTensor | None = None) -> SparseTensor:
        """like: the tensor at whose places the coarse rows are; None: wherever there is a child (the device is waited for)."""
        f = self.factor
        if _receptive.recorder is not None:
            _receptive.recorder.convolution(x, Kernel(x.dims, f, f, 0, 1), "convolution", None)
        if like is not None:
            return like.at(F.space_to_channel(x.feats, like.set, x.set, factor=f), like.sites)
        _rows_in_use(x, "SpaceToChannel")
        shape = None if x.spatial_shape is None else tuple(-(-n // f) for n in x.spatial_shape)
        set = F.coords_down(x.set, size=f, stride=f, **x.sites._box(shape))
        rows, _ = F.coords_rows(set)
        stride = tuple(s * f for s in x.stride)
        return SparseTensor(
            F.space_to_channel(x.feats, set, x.set, factor=f), sites=Sites(rows, shape, x.sites._batch_size, stride, set)
        )


class PointConv(nn.Module):
    """Convolution over the neighbours of points, a matrix for each tap of a grid around a point.

    Parameters
    ----------
    in_channels, out_channels : int
    taps : int, odd
        Taps along each of the three axes.
    groups : int

    ``forward(feats, plan)``: feats [inputs, C_in]; plan of ``F.pointconv_plan(F.neighbors(...),
    backward=True)``. Returns [outputs, C_out].
    """

    def __init__(self, in_channels: int, out_channels: int, taps: int = 3, groups: int = 1, bias: bool = True):
        super().__init__()
        self.groups = groups
        bound = 1 / math.sqrt(taps**3 * in_channels / groups)
        self.weight = nn.Parameter(torch.empty(taps**3, in_channels // groups, out_channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound)) if bias else None

    def forward(self, feats: Tensor, plan: Plan) -> Tensor:
        _reads_all()
        return F.pointconv(feats, self.weight.to(feats.dtype), plan, bias=_layers.vector(self.bias, feats.dtype), groups=self.groups)


class BEVPool(nn.Module):
    """Lifts images by their depths and sums them in the cells of a grid seen from above.

    Parameters
    ----------
    channels_first : bool
        The result is [B, C, Z, Y, X], else [B, Z, Y, X, C].

    ``forward(feat, depth, plan)``: feat [B, cameras, C, H, W], which is not copied where it lies in
    memory with channels last; depth [B, cameras, depths, H, W], a probability for each depth; plan of
    ``F.bev_plan(..., backward=True)``. Gradients of both.

    Raises
    ------
    ValueError : shapes that are not those of the plan.
    """

    def __init__(self, channels_first: bool = True):
        super().__init__()
        self.channels_first = channels_first

    def forward(self, feat: Tensor, depth: Tensor, plan: Plan) -> Tensor:
        sizes = plan.num_batches, plan.num_cameras, plan.feature_height, plan.feature_width
        if feat.dim() != 5 or (*feat.shape[:2], *feat.shape[3:]) != sizes:
            b, n, h, w = sizes
            raise ValueError(f"BEVPool: feat is {list(feat.shape)}, expected [{b}, {n}, channels, {h}, {w}]")
        if tuple(depth.shape) != (*sizes[:2], plan.num_depths, *sizes[2:]):
            raise ValueError(f"BEVPool: depth is {list(depth.shape)}, expected {[*sizes[:2], plan.num_depths, *sizes[2:]]}")
        channels = feat.shape[2]
        rows = feat.movedim(2, -1).reshape(-1, channels)
        layout = "channels_first" if self.channels_first else "channels_last"
        out = F.bevpool(rows, depth.reshape(-1, 1), plan, layout=layout)
        cells = plan.num_cells_z, plan.num_cells_y, plan.num_cells_x
        return out.view(sizes[0], channels, *cells) if self.channels_first else out.view(sizes[0], *cells, channels)

    def extra_repr(self) -> str:
        return f"channels_first={self.channels_first}"


class AttentionBlock(nn.Module):
    """Attention among the rows of patches, and a small network: x + attend(norm(x)), x + mlp(norm(x)).

    Parameters
    ----------
    channels : int
        A multiple of heads.
    heads : int
    expansion : float
        Width of the network, in channels.
    rotary_base : float
        Base of rotary positions, which ``positions`` in forward turns on; 0: the library's.

    ``forward(feats, patches, positions=None)``: feats [rows, channels]; patches of kind patches: of
    rows that follow each other on a curve (``F.patches_order(points, patch_rows=1024)``), of neighbouring
    buckets (``F.patches_buckets(F.buckets(...))``), of windows (``F.patches_grid(coords, window=[16, 16, 0])``), or of lists (``F.patches``); positions f32 or i32 [rows, 3].
    """

    def __init__(self, channels: int, heads: int, expansion: float = 4, rotary_base: float = 0.0):
        super().__init__()
        if channels % heads:
            raise ValueError(f"channels {channels} are no multiple of heads {heads}")
        self.heads, self.rotary_base = heads, rotary_base
        self.norm1, self.norm2 = LayerNorm(channels), LayerNorm(channels)
        self.qkv, self.proj = Linear(channels, 3 * channels), Linear(channels, channels)
        width = int(channels * expansion)
        self.mlp = nn.Sequential(Linear(channels, width, activation="gelu"), nn.Identity(), Linear(width, channels))

    def forward(self, feats: Tensor, patches: Plan, positions: Tensor | None = None) -> Tensor:
        _reads_all()
        q, k, v = self.qkv(self.norm1(feats)).chunk(3, 1)  # rows with gaps, read where they are
        o = F.attention(q, k, v, patches, positions=positions, heads=self.heads, rotary_base=self.rotary_base)
        feats = feats + self.proj(o)
        return feats + self.mlp(self.norm2(feats))


__all__ = sorted(n for n, v in list(globals().items()) if isinstance(v, type) and issubclass(v, nn.Module) and v.__module__ == __name__)
