# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors: rows of features at places of a grid, with the kernel maps between their places."""
from __future__ import annotations

from collections.abc import Sequence

from functools import wraps

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch.compiler import is_compiling
from torch.utils._python_dispatch import _disable_current_modes

from . import _layers, _receptive
from . import functional as F
from ._made import _indices
from ._plan import Plan


def _of_data(f):
    """f reads what is in tensors, and makes plans: also where a mode shows it others (prepare)."""

    @wraps(f)
    def outside(*args):
        if is_compiling() or not _len_torch_dispatch_stack():
            return f(*args)
        with _disable_current_modes():
            return f(*args)

    return outside


def per_axis(value, dims: int, name: str) -> tuple[int, ...]:
    """A number for every axis."""
    values = (value,) * dims if isinstance(value, int) else tuple(int(v) for v in value)
    if len(values) != dims:
        raise ValueError(f"{name} has {len(values)} numbers, expected {dims}, or one for all axes")
    return values


class Kernel:
    """A convolution's window: sizes, strides, padding and dilation of every axis."""

    __slots__ = ("dims", "size", "stride", "padding", "dilation", "num_taps")

    def __init__(self, dims, size, stride=1, padding=0, dilation=1):
        self.dims = dims
        self.size = per_axis(size, dims, "kernel_size")
        self.stride = per_axis(stride, dims, "stride")
        self.dilation = per_axis(dilation, dims, "dilation")
        if padding == "same":
            padding = tuple(d * (k // 2) for k, d in zip(self.size, self.dilation))
        self.padding = per_axis(padding, dims, "padding")
        self.num_taps = 1
        for k in self.size:
            self.num_taps *= k

    @property
    def key(self):
        return self.size, self.stride, self.padding, self.dilation

    @property
    def is_pointwise(self) -> bool:
        """One tap that joins every row to itself."""
        return self.num_taps == 1 and all(s == 1 for s in self.stride) and not any(self.padding)

    def arguments(self) -> dict:
        return dict(size=self.size, stride=self.stride, padding=self.padding, dilation=self.dilation)

    def out_shape(self, shape, transposed: bool, output_padding=None):
        """Extents of the outputs; None where those of the inputs are not known."""
        if shape is None:
            return None
        extra = output_padding or (0,) * self.dims
        per = zip(shape, self.size, self.stride, self.padding, self.dilation, extra)
        if transposed:
            return tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, k, s, p, d, e in per)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in per)


class Relation:
    """A kernel map between two sets of places, with the plans that layers on it share.

    sites: the outputs, where they are new; None: those that the caller knows. A relation names no places that it
    starts from, which keep it: plans are freed with the last tensor that has them, and not by a collection.
    """

    def __init__(self, map: Plan, sites: Sites | None):
        self.map, self.sites = map, sites
        self._plans: dict = {}
        self._inverse: Relation | None = None

    @_of_data
    def conv(self, channels: int, pairs: bool = True) -> Plan:
        """The plan of convolutions of up to so many channels.

        pairs False: of those alone that tensor cores take in every pass (_layers.fits_tensor_cores). Such a
        plan has no pairs in the order of tiles, which are most of a plan's memory and of the time to make it.
        """
        width = 256 if self.map.num_taps <= 64 else 32  # scratch is taps x width^2
        while width < channels:
            width *= 2
        key = "conv", width, pairs, _layers.plans_are_crop_independent()
        if key not in self._plans:
            how = dict(backward=True, max_in_channels=width, max_out_channels=width, crop_independent=key[3])
            try:
                self._plans[key] = F.sparseconv_plan(self.map, dataflow="auto" if pairs else "implicit_gemm", **how)
            except NotImplementedError:
                if pairs:
                    raise
                self._plans[key] = self.conv(channels)  # the library was built without these kernels
        return self._plans[key]

    @_of_data
    def pool(self, reduce: str, channels: int) -> Plan:
        gradients = "linear" if reduce in ("sum", "mean") else "all"
        width = max(256, channels)
        if (gradients, width) not in self._plans:
            self._plans[gradients, width] = F.pool_plan(self.map, gradients=gradients, max_cols=width)
        return self._plans[gradients, width]

    @_of_data
    def inverse(self, sites: Sites) -> Relation:
        """The map back onto the inputs' places, which are these."""
        if self._inverse is None:
            self._inverse = Relation(F.kernel_map_inverse(self.map), None)
        return self._inverse


class Sites:
    """Places of rows: coordinates, the set of them, and the maps that start there."""

    def __init__(self, coords: Tensor, shape, batch_size: int | None, stride, set: Plan | None = None):
        self.coords, self.shape, self.stride = coords, shape, stride
        self._set, self._batch_size = set, batch_size
        self._relations: dict = {}
        self._pools: dict = {}

    num_rows: Tensor | None = None  # i32 [1]: rows in use, where there are more; None: all

    @property
    def dims(self) -> int:
        return self.coords.shape[1] - 1

    @property
    @_of_data
    def batch_size(self) -> int:
        if self._batch_size is None:  # waits for the device, once
            self._batch_size = int(self.coords[:, 0].max()) + 1 if len(self.coords) else 1
        return self._batch_size

    @property
    @_of_data
    def set(self) -> Plan:
        if self._set is None:
            self._set = F.coords(self.coords, **self._box(self.shape))
        return self._set

    def _box(self, shape) -> dict:
        if shape is None:
            return {}
        return dict(lower=(0,) * (1 + self.dims), upper=(self.batch_size - 1, *(n - 1 for n in shape)))

    def stride_onto(self, kernel: Kernel, transposed: bool) -> tuple[int, ...]:
        """Stride of a strided convolution's outputs, or of a transposed one's."""
        if transposed:
            return tuple(max(a // b, 1) for a, b in zip(self.stride, kernel.stride))
        return tuple(a * b for a, b in zip(self.stride, kernel.stride))

    @_of_data
    def within(self, kernel: Kernel) -> Relation:
        """The submanifold map of these places."""
        key = "within", kernel.size, kernel.dilation
        if key not in self._relations:
            map = F.kernel_map(self.set, kind="submanifold", size=kernel.size, dilation=kernel.dilation)
            self._relations[key] = Relation(map, None)
        return self._relations[key]

    @_of_data
    def onto(self, kernel: Kernel, transposed: bool = False, output_padding=None) -> Relation:
        """The map to the outputs of a strided, or of a generative transposed convolution."""
        key = "up" if transposed else "down", *kernel.key, output_padding
        if key not in self._relations:
            shape = kernel.out_shape(self.shape, transposed, output_padding)
            if shape is not None and min(shape, default=1) < 1:
                raise ValueError(f"spatial shape {tuple(self.shape)} is smaller than the kernel: outputs would be {shape}")
            make = F.coords_up if transposed else F.coords_down
            out = make(self.set, **kernel.arguments(), **self._box(shape))
            rows, _ = F.coords_rows(out)
            stride = self.stride_onto(kernel, transposed)
            sites = Sites(rows, shape, self.batch_size, stride, out)
            kind = "transposed" if transposed else "convolution"
            self._relations[key] = Relation(F.kernel_map(self.set, out, kind=kind, **kernel.arguments()), sites)
        return self._relations[key]

    @_of_data
    def global_pool(self, reduce: str, channels: int) -> Plan:
        gradients = "linear" if reduce in ("sum", "mean") else "all"
        key = gradients, max(256, channels)
        if key not in self._pools:
            self._pools[key] = F.pool_global_plan(self.set, self.batch_size, gradients=gradients, max_cols=key[1])
        return self._pools[key]


    @property
    @_of_data
    def samples(self) -> Plan:
        """Which rows belong to which batch: a plan of kind segments."""
        if "samples" not in self._pools:
            self._pools["samples"] = F.pool_segments(self.global_pool("mean", 256))
        return self._pools["samples"]


class SparseTensor:
    """Rows of features at places of a grid.

    Parameters
    ----------
    feats : Tensor [N, C]
        A row of features for every place.
    coords : Tensor [N, 1 + D], integers
        Batch, then 1 to 4 axes; no row twice.
    spatial_shape : sequence of D ints, optional
        Extents of the grid: places lie from 0 to below them, and layers compute theirs as dense ones
        do. None: the grid has no bounds.
    batch_size : int, optional
        None: the largest batch, and one; asking for it waits for the device once.

    Attributes
    ----------
    feats, coords, spatial_shape, batch_size
    stride : tuple of D ints
        How many places of the first tensor lie between two of this one.
    set : Plan
        The places as a set of coordinates, made when it is first asked for.

    Tensors that layers make from this one share its maps: a map is made once for each kernel.

    Raises
    ------
    ValueError : shapes that do not belong together; rows twice or outside, when the set is made.
    """

    def __init__(
        self,
        feats: Tensor,
        coords: Tensor | None = None,
        spatial_shape: Sequence[int] | None = None,
        batch_size: int | None = None,
        *,
        sites: Sites | None = None,
        keys: dict | None = None,
    ):
        if sites is None:
            if coords is None or coords.dim() != 2 or not 2 <= coords.shape[1] <= 5:
                raise ValueError("SparseTensor: coords must be [N, 1 + D]: batch and 1 to 4 axes")
            dims = coords.shape[1] - 1
            shape = None if spatial_shape is None else per_axis(spatial_shape, dims, "SparseTensor: spatial_shape")
            sites = Sites(_indices(coords).contiguous(), shape, batch_size, (1,) * dims)
        if feats.dim() != 2 or feats.shape[0] != sites.coords.shape[0]:
            raise ValueError(f"SparseTensor: feats is {list(feats.shape)}, expected [{sites.coords.shape[0]}, channels]")
        self.feats, self.sites = feats, sites
        self.keys = {} if keys is None else keys  # name of a layer's map -> (relation, where it starts)

    coords = property(lambda self: self.sites.coords)
    spatial_shape = property(lambda self: self.sites.shape)
    batch_size = property(lambda self: self.sites.batch_size)
    stride = property(lambda self: self.sites.stride)
    set = property(lambda self: self.sites.set)
    dims = property(lambda self: self.sites.dims)
    device = property(lambda self: self.feats.device)
    dtype = property(lambda self: self.feats.dtype)
    num_rows = property(lambda self: self.sites.num_rows)

    @property
    def mask(self) -> Tensor:
        """bool [rows]: which rows are in use; all, but of a tensor with a capacity (spops.Graph)."""
        every = torch.arange(len(self), device=self.device)
        return every < (len(self) if self.num_rows is None else self.num_rows)

    def compact(self) -> SparseTensor:
        """A tensor of the rows in use alone, with maps of its own; of one with a capacity. Waits for the device."""
        if self.num_rows is None:
            return self
        n = min(int(self.num_rows), len(self))
        return SparseTensor(self.feats[:n].clone(), self.coords[:n].clone(), self.spatial_shape, self.batch_size)

    def replace(self, feats: Tensor) -> SparseTensor:
        """The same places with other features."""
        return SparseTensor(feats, sites=self.sites, keys=self.keys)

    def at(self, feats: Tensor, sites: Sites) -> SparseTensor:
        """Features at other places; maps stay shared."""
        return SparseTensor(feats, sites=sites, keys=self.keys)

    def dense(self, channels_first: bool = True, fill: float = 0.0) -> Tensor:
        """[batch_size, C, *spatial_shape], or [batch_size, *spatial_shape, C]; fill where there is no row.

        Every element is written once. With axes z, y, x, ``.flatten(1, 2)`` gives the height-compressed
        [batch_size, C z, y, x] without a copy.
        """
        if self.spatial_shape is None:
            raise ValueError("SparseTensor: dense needs a spatial_shape")
        batches, channels = self.batch_size, self.feats.shape[1]
        sizes = {f"size{a}": n for a, n in enumerate(self.spatial_shape)}
        layout = "channels_first" if channels_first else "channels_last"
        grid = F.dense(self.feats, self.set, layout=layout, num_batches=batches, fill=fill, **sizes)
        return grid.reshape((batches, channels, *self.spatial_shape) if channels_first else (batches, *self.spatial_shape, channels))

    def from_dense(self, grid: Tensor, channels_first: bool = True) -> SparseTensor:
        """The features of a dense grid at this tensor's places: ``x.from_dense(head(x.dense()))``."""
        if self.spatial_shape is None:
            raise ValueError("SparseTensor: from_dense needs a spatial_shape")
        sizes = {f"size{a}": n for a, n in enumerate(self.spatial_shape)}
        shape = (self.batch_size, grid.shape[1 if channels_first else -1])
        expected = (*shape, *self.spatial_shape) if channels_first else (shape[0], *self.spatial_shape, shape[1])
        if tuple(grid.shape) != expected:
            raise ValueError(f"SparseTensor: the grid is {list(grid.shape)}, expected {list(expected)}")
        layout = "channels_first" if channels_first else "channels_last"
        rows = grid.reshape((shape[0] * shape[1], -1) if channels_first else (-1, shape[1]))
        return self.replace(F.dense_rows(rows, self.set, layout=layout, num_batches=shape[0], **sizes))

    def _of(self, other):
        if isinstance(other, SparseTensor):
            if other.sites is not self.sites and not torch.equal(other.coords, self.coords):
                raise ValueError("SparseTensor: the two have rows at other places")
            return other.feats
        return other

    def __add__(self, other) -> SparseTensor:
        return self.replace(self.feats + self._of(other))

    __radd__ = __add__

    def __mul__(self, other) -> SparseTensor:
        return self.replace(self.feats * self._of(other))

    __rmul__ = __mul__

    def cat(self, other: SparseTensor) -> SparseTensor:
        """Columns of both, side by side; the same places."""
        return self.replace(torch.cat([self.feats, self._of(other)], 1))

    def __len__(self) -> int:
        return self.feats.shape[0]

    def __repr__(self) -> str:
        return f"SparseTensor(rows={len(self)}, channels={self.feats.shape[1]}, axes={self.dims}, stride={self.stride})"


def prepare(net: torch.nn.Module, *inputs, **named) -> None:
    """Make all plans that net needs for its inputs, without computing features.

    net : Module
        Takes SparseTensors (and whatever else) as ``net(*inputs, **named)``; its forward is run on
        tensors without memory, so that it must not look at features.

    Afterwards the inputs have all maps and plans, and ``torch.compile(net, fullgraph=True)`` takes
    them: a compiled network makes no plans.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(v):
        if isinstance(v, SparseTensor):
            return v.replace(mode.from_tensor(v.feats.detach()))
        return mode.from_tensor(v.detach()) if isinstance(v, Tensor) and v.is_floating_point() else v

    state = {k: mode.from_tensor(v.detach()) for k, v in (*net.named_parameters(), *net.named_buffers())}
    with mode, torch.no_grad():
        torch.func.functional_call(net, state, tuple(map(fake, inputs)), {k: fake(v) for k, v in named.items()})


def voxelize(
    points: Tensor,
    size: float | Sequence[float],
    feats: Tensor | None = None,
    batch: Tensor | None = None,
    origin: Sequence[float] | float = 0.0,
    lower: Sequence[float] | None = None,
    upper: Sequence[float] | None = None,
    reduce: str = "mean",
    order: str = "given",
) -> SparseTensor:
    """The voxels that points lie in.

    Parameters
    ----------
    points : Tensor [N, D], f32 or f16, m
        1 to 4 axes.
    size : m, of a voxel; one for all axes or one for each.
    feats : Tensor [N, C], optional
        What is reduced to a voxel's features; None: the points themselves.
    batch : Tensor [N], i32, optional
    origin : m, where voxel 0 begins.
    lower, upper : m, optional
        Points outside are left out.
    reduce : sum, mean, min, max

    Returns
    -------
    SparseTensor, whose ``voxels`` brings features back (:func:`devoxelize`). Gradients of feats.

    Raises
    ------
    ValueError : points that are not finite, of another shape; sizes of 0 and less.
    """
    feats = points.float() if feats is None else feats
    crop = {} if lower is None and upper is None else dict(lower_m=lower, upper_m=upper)
    wanted = feats.requires_grad and torch.is_grad_enabled()  # what gradients need takes longer than the voxels
    gradients = ("linear" if reduce in ("sum", "mean") else "all") if wanted else "none"
    v = F.voxels(
        points, batch=batch, size_m=size, origin_m=origin, order=order, gradients=gradients, max_cols=feats.shape[1], **crop
    )
    set = F.voxels_coords(v)
    rows, _ = F.coords_rows(set)
    x = SparseTensor(
        F.segreduce(feats, F.voxels_segments(v), reduce=reduce),
        sites=Sites(rows, None, None, (1,) * (rows.shape[1] - 1), set),
    )
    x.sites.size_m, x.sites.origin_m = size, origin
    return x


def hard_voxelize(
    points: Tensor,
    size: float | Sequence[float],
    most_points: int,
    feats: Tensor | None = None,
    batch: Tensor | None = None,
    origin: Sequence[float] | float = 0.0,
    lower: Sequence[float] | None = None,
    upper: Sequence[float] | None = None,
    choose: str = "first",
    seed: int = 0,
    order: str = "given",
) -> tuple[Tensor, Tensor, Tensor]:
    """Voxels of at most most_points points each, padded, as PointPillars and its kind take them.

    Parameters
    ----------
    most_points : int, P
    choose : first (by number) or random (by seed)
    The others as of :func:`voxelize`.

    Returns
    -------
    padded [V, P, C] with zeros where there is no point, places [V, 1 + D] (batch first), and how many of a
    voxel's P places have a point [V]. Gradients of feats.
    """
    feats = points.float() if feats is None else feats
    crop = {} if lower is None and upper is None else dict(lower_m=lower, upper_m=upper)
    v = F.voxels(
        points, batch=batch, size_m=size, origin_m=origin, order=order, points_of=choose, seed=seed,
        most_points=most_points, max_cols=feats.shape[1], **crop,
    )  # fmt: skip
    rows, _ = F.coords_rows(F.voxels_coords(v))
    padded, counts = F.voxels_padded(feats, v, num_points=True)
    return padded.reshape(len(rows), most_points, -1), rows, counts


def devoxelize(
    x: SparseTensor,
    points: Tensor,
    size: float | Sequence[float] | None = None,
    batch: Tensor | None = None,
    origin: Sequence[float] | float | None = None,
    interpolation: str = "nearest",
    missing: str = "zero",
) -> Tensor:
    """Features of voxels at points: of the voxel that a point lies in, or interpolated linearly.

    Parameters
    ----------
    x : SparseTensor
    points : Tensor [N, D], f32 or f16, m
    size, origin : m; None: those that :func:`voxelize` had.
    interpolation : nearest, linear
    missing : zero, rescale
        Neighbours of linear interpolation that there are not: 0, or left out of the weighted mean.

    Returns
    -------
    Tensor [N, C]; zeros where there is no voxel. Gradients of ``x.feats``.
    """
    size = getattr(x.sites, "size_m", None) if size is None else size
    if size is None:
        raise ValueError("devoxelize: size is not given, and the voxels were not made by voxelize")
    origin = getattr(x.sites, "origin_m", 0.0) if origin is None else origin
    if _receptive.recorder is not None:
        _receptive.recorder.devoxelize(x, interpolation)
    d = F.devoxels(
        points, x.set, batch=batch, size_m=size, origin_m=origin, interpolation=interpolation,
        missing=missing, gradients="linear", max_cols=x.feats.shape[1],
    )  # fmt: skip
    return F.segreduce(x.feats, F.devoxels_segments(d), w=F.devoxels_weights(d), reduce="sum")
