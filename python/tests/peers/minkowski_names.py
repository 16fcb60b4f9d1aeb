# SPDX-License-Identifier: Apache-2.0
"""MinkowskiEngine's names on spops, as far as its tests of convolutions, pools and pruning read them.

Tests put these modules under MinkowskiEngine's name. Coordinates of a tensor of stride s are multiples
of s there; sets here have them divided by it. Functions have `apply`, as the tests call them.
"""
from __future__ import annotations

import enum
import math
import types

import torch
from torch import nn

import spops
from spops import functional as F


def axes(v, dims):
    return tuple(v) if isinstance(v, (list, tuple)) else (int(v),) * dims


def distinct(rows):
    """Rows once each, where each comes first, and which of them every row is."""
    unique, inverse = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((len(unique),), len(rows)).scatter_reduce(0, inverse, torch.arange(len(rows)), "amin")
    return unique.contiguous(), first, inverse


class Key:
    """A set of coordinates, and how far its rows lie apart."""

    def __init__(self, rows, stride, plan=None):
        self.rows, self.stride = rows, stride  # rows: batch, then coordinates / stride
        self.plan = F.coords(rows) if plan is None else plan

    def get_tensor_stride(self):
        return list(self.stride)

    @property
    def coordinates(self):
        return self.rows * torch.tensor((1, *self.stride), dtype=torch.int32)


class Manager:
    def __init__(self, D=None, coordinate_map_type=None, allocator_type=None):
        self.keys, self.maps = [], {}

    def insert_and_map(self, coordinates, tensor_stride):
        rows = torch.div(coordinates.int(), torch.tensor((1, *tensor_stride), dtype=torch.int32), rounding_mode="floor")
        rows, first, inverse = distinct(rows)
        return self.keep(Key(rows, tuple(tensor_stride))), (first, inverse)

    def get_coordinates(self, key):
        return key.coordinates

    def kernel_map(self, source, target, stride, size, dilation, *_):
        generator = KernelGenerator(size, stride, dilation, dimension=len(size))
        return F.kernel_map(source.plan, target.plan, kind="convolution", **generator.window())

    def number_of_unique_batch_indices(self):
        return len(torch.unique(self.keys[0].rows[:, 0]))

    def stride(self, key, stride):
        return down(KernelGenerator(stride, stride, dimension=len(stride)), key, self)[0]

    def find(self, stride):
        return next((k for k in self.keys if k.stride == stride), None)

    def keep(self, key):
        self.keys.append(key)
        return key


class KernelGenerator:
    def __init__(self, kernel_size=-1, stride=1, dilation=1, is_transpose=False, expand_coordinates=False, dimension=-1, **_):
        self.dims = dimension
        self.size, self.stride, self.dilation = (axes(v, dimension) for v in (kernel_size, stride, dilation))
        self.expand_coordinates = expand_coordinates

    def window(self):
        """Odd sizes are centred, even ones begin at the place itself."""
        padding = tuple(d * (k // 2) if k % 2 else 0 for k, d in zip(self.size, self.dilation))
        return dict(size=self.size, stride=self.stride, padding=padding, dilation=self.dilation)

    def taps(self):
        """Where each tap of ours is in a kernel of theirs."""
        n = math.prod(self.size)
        order = torch.arange(n, dtype=torch.float32).view(n, 1, 1)
        return spops.weights.load("minkowski", order, kernel_size=self.size, dims=self.dims, in_channels=1, out_channels=1).flatten().long()


def down(generator, source, manager):
    """The outputs of a strided layer, and the map to them."""
    stride = tuple(a * b for a, b in zip(source.stride, generator.stride))
    known = source if stride == source.stride and not generator.expand_coordinates else manager.find(stride)
    if known is None or generator.expand_coordinates:
        reach = generator.window() if generator.expand_coordinates else dict(size=generator.stride, stride=generator.stride)
        plan = F.coords_down(source.plan, **reach)
        known = manager.keep(Key(F.coords_rows(plan)[0], stride, plan))
    return known, F.kernel_map(source.plan, known.plan, kind="convolution", **generator.window(), contents="table|order|pairs|csr|reverse")


def up(generator, source, manager, new=False):
    """The outputs of a transposed layer: the finer set that there is, or what the windows reach."""
    stride = tuple(max(a // b, 1) for a, b in zip(source.stride, generator.stride))
    known = None if new else manager.find(stride)
    if known is None:
        plan = F.coords_up(source.plan, **generator.window())
        known = manager.keep(Key(F.coords_rows(plan)[0], stride, plan))
    return known, F.kernel_map(source.plan, known.plan, kind="transposed", **generator.window(), contents="table|order|pairs|csr|reverse")


def convolve(x, kernel, generator, source, target, manager, transposed, new=False, groups=1):
    """(rows, their key): by a map that is made once for each kernel and pair of sets."""
    name = (transposed, generator.size, generator.stride, generator.dilation, id(source))
    if (name, id(target)) not in manager.maps:
        key, map = up(generator, source, manager, new) if transposed else down(generator, source, manager)
        plan = F.sparseconv_plan(map, backward=True)
        manager.maps[name, id(target)] = manager.maps[name, id(key)] = key, map, plan
    key, _, plan = manager.maps[name, id(target)]
    w = kernel.view(math.prod(generator.size), -1, kernel.shape[-1])[generator.taps()]
    return F.sparseconv(x, w, plan, groups=groups), key


def pool(x, mode, generator, source, target, manager, transposed=False):
    key, map = up(generator, source, manager) if transposed else down(generator, source, manager)
    return F.pool(x, F.pool_plan(map, gradients="all"), reduce=mode), key


class MinkowskiConvolutionFunction:
    @staticmethod
    def apply(x, kernel, generator, mode, source, target, manager):
        return convolve(x, kernel, generator, source, target, manager, False)[0]


class MinkowskiConvolutionTransposeFunction:
    @staticmethod
    def apply(x, kernel, generator, mode, source, target, manager):
        return convolve(x, kernel, generator, source, target, manager, True)[0]


class MinkowskiLocalPoolingFunction:
    @staticmethod
    def apply(x, mode, generator, source, target, manager):
        return pool(x, mode, generator, source, target, manager)[0]


class MinkowskiLocalPoolingTransposeFunction:
    @staticmethod
    def apply(x, mode, generator, source, target, manager):
        return pool(x, mode, generator, source, target, manager, True)[0]


class MinkowskiGlobalPoolingFunction:
    @staticmethod
    def apply(x, mode, source, target, manager):
        plan = F.pool_global_plan(source.plan, int(source.rows[:, 0].max()) + 1, gradients="all")
        return F.pool(x, plan, reduce=mode)


class MinkowskiPruningFunction:
    @staticmethod
    def apply(x, mask, source, target, manager):
        return x[torch.nonzero(mask)[:, 0]]


class SparseTensorQuantizationMode(enum.Enum):
    UNWEIGHTED_AVERAGE = "mean"
    UNWEIGHTED_SUM = "sum"
    RANDOM_SUBSAMPLE = "first"
    MAX_POOL = "max"


class MinkowskiAlgorithm(enum.Enum):
    DEFAULT, MEMORY_EFFICIENT, SPEED_OPTIMIZED = 0, 1, 2


class SparseTensor:
    def __init__(self, features, coordinates=None, tensor_stride=1, coordinate_map_key=None, coordinate_manager=None,
                 quantization_mode=SparseTensorQuantizationMode.RANDOM_SUBSAMPLE, minkowski_algorithm=None, requires_grad=None,
                 device=None):  # fmt: skip
        # device: the tests' files have the CPU in every place of a GPU
        self._manager = coordinate_manager or Manager()
        if coordinate_map_key is None:
            stride = axes(tensor_stride, coordinates.shape[1] - 1)
            rows = torch.div(coordinates.int(), torch.tensor((1, *stride), dtype=torch.int32), rounding_mode="floor")
            unique, first, self.inverse = distinct(rows)
            if len(unique) < len(rows):
                v = F.segments(self.inverse, len(unique), num_rows=len(rows), gradients="all")
                if quantization_mode is SparseTensorQuantizationMode.RANDOM_SUBSAMPLE:
                    features = features[first]
                else:
                    features = F.segreduce(features, v, reduce=quantization_mode.value)
                rows = unique
            coordinate_map_key = self._manager.keep(Key(rows.contiguous(), stride))
        self.coordinate_map_key = coordinate_map_key
        self._F = features.requires_grad_() if requires_grad else features

    F = features = property(lambda self: self._F)
    C = coordinates = property(lambda self: self.coordinate_map_key.coordinates)
    coordinate_manager = property(lambda self: self._manager)
    tensor_stride = property(lambda self: self.coordinate_map_key.get_tensor_stride())
    D = property(lambda self: self.coordinate_map_key.rows.shape[1] - 1)

    def __len__(self):
        return len(self._F)

    def size(self):
        return self._F.size()

    def requires_grad_(self, requires_grad=True):
        self._F.requires_grad_(requires_grad)
        return self

    def slice(self, x):
        return self.at(self._F[x.inverse], self.coordinate_map_key)

    def coordinates_at(self, batch):
        return self.C[self.C[:, 0] == batch, 1:]

    def features_at(self, batch):
        return self._F[self.C[:, 0] == batch]

    def coordinates_and_features_at(self, batch):
        return self.coordinates_at(batch), self.features_at(batch)

    @property
    def decomposed_coordinates_and_features(self):
        batches = range(int(self.C[:, 0].max()) + 1)
        return [self.coordinates_at(b) for b in batches], [self.features_at(b) for b in batches]

    def features_at_coordinates(self, places):
        return interpolate(self._F, places, self.coordinate_map_key)

    def detach(self):
        return self.at(self._F.detach())

    def at(self, features, key=None):
        return SparseTensor(features, coordinate_map_key=key or self.coordinate_map_key, coordinate_manager=self._manager)

    def dense(self, min_coordinate=None):
        stride = torch.tensor(self.tensor_stride, dtype=torch.int32)
        low = torch.zeros(self.D, dtype=torch.int32) if min_coordinate is None else min_coordinate.int().flatten()
        rows = self.coordinate_map_key.rows.clone()
        rows[:, 1:] -= torch.div(low, stride, rounding_mode="floor")
        x = spops.SparseTensor(self._F, rows, (rows[:, 1:].amax(0) + 1).tolist())
        return x.dense(), low, stride


class _Layer(nn.Module):
    transposed = False

    def __init__(self, kernel_size=-1, stride=1, dilation=1, kernel_generator=None, expand_coordinates=False, dimension=-1):
        super().__init__()
        self.kernel_generator = kernel_generator or KernelGenerator(kernel_size, stride, dilation, self.transposed, expand_coordinates, dimension=dimension)


class MinkowskiConvolution(_Layer):
    new = False

    def __init__(self, in_channels, out_channels, kernel_size=-1, stride=1, dilation=1, bias=False, kernel_generator=None,
                 expand_coordinates=False, convolution_mode=None, dimension=None, generate_new_coords=False):  # fmt: skip
        super().__init__(kernel_size, stride, dilation, kernel_generator, expand_coordinates, dimension)
        self.convolution_mode, self.new = convolution_mode, self.new or generate_new_coords
        taps = math.prod(self.kernel_generator.size)
        shape = (in_channels, out_channels) if taps == 1 else (taps, in_channels, out_channels)
        self.kernel = nn.Parameter(torch.randn(shape) / math.sqrt(taps * in_channels))
        self.bias = nn.Parameter(torch.zeros(1, out_channels)) if bias else None
        self.kernel.requires_grad_()

    def forward(self, x):
        out, key = convolve(x.F, self.kernel, self.kernel_generator, x.coordinate_map_key, None, x._manager, self.transposed, self.new)
        return x.at(out if self.bias is None else out + self.bias, key)


class MinkowskiConvolutionTranspose(MinkowskiConvolution):
    transposed = True


class MinkowskiGenerativeConvolutionTranspose(MinkowskiConvolutionTranspose):
    new = True


class _Pooling(_Layer):
    pooling_mode = "sum"

    def __init__(self, kernel_size, stride=1, dilation=1, kernel_generator=None, dimension=None):
        super().__init__(kernel_size, stride, dilation, kernel_generator, False, dimension)

    def forward(self, x):
        return x.at(*pool(x.F, self.pooling_mode, self.kernel_generator, x.coordinate_map_key, None, x._manager, self.transposed))


class _GlobalPooling(nn.Module):
    pooling_mode = "sum"

    def __init__(self, mode=None):
        super().__init__()

    def forward(self, x):
        out = MinkowskiGlobalPoolingFunction.apply(x.F, self.pooling_mode, x.coordinate_map_key, None, x._manager)
        rows = torch.zeros(len(out), 1 + x.D, dtype=torch.int32)
        rows[:, 0] = torch.arange(len(out))
        return x.at(out, Key(rows, (0,) * x.D))


def _kind(base, name, **values):
    return type(name, (base,), values)


MinkowskiSumPooling = _kind(_Pooling, "MinkowskiSumPooling")
MinkowskiAvgPooling = _kind(_Pooling, "MinkowskiAvgPooling", pooling_mode="mean")
MinkowskiMaxPooling = _kind(_Pooling, "MinkowskiMaxPooling", pooling_mode="max")
MinkowskiPoolingTranspose = _kind(_Pooling, "MinkowskiPoolingTranspose", transposed=True)
MinkowskiGlobalSumPooling = MinkowskiGlobalPooling = _kind(_GlobalPooling, "MinkowskiGlobalSumPooling")
MinkowskiGlobalAvgPooling = _kind(_GlobalPooling, "MinkowskiGlobalAvgPooling", pooling_mode="mean")
MinkowskiGlobalMaxPooling = _kind(_GlobalPooling, "MinkowskiGlobalMaxPooling", pooling_mode="max")


class MinkowskiChannelwiseConvolution(MinkowskiConvolution):
    def __init__(self, in_channels, kernel_size=-1, **more):
        super().__init__(1, in_channels, kernel_size, **more)

    def forward(self, x):
        out, key = convolve(x.F, self.kernel, self.kernel_generator, x.coordinate_map_key, None, x._manager, False, groups=x.F.shape[1])
        return x.at(out, key)


class MinkowskiPruning(nn.Module):
    def forward(self, x, mask):
        plan = F.coords_pruned(mask.to(torch.uint8), x.coordinate_map_key.plan)
        key = Key(F.coords_rows(plan)[0], x.coordinate_map_key.stride, plan)
        return x.at(MinkowskiPruningFunction.apply(x.F, mask, x.coordinate_map_key, key, x._manager), key)


class MinkowskiUnion(nn.Module):
    def forward(self, *xs):
        rows, index = torch.unique(torch.cat([x.coordinate_map_key.rows for x in xs]), dim=0, return_inverse=True)
        plan = F.segments(index, len(rows), num_rows=len(index), gradients="linear")
        out = F.segreduce(torch.cat([x.F for x in xs]), plan, reduce="sum")
        return xs[0].at(out, Key(rows.contiguous(), xs[0].coordinate_map_key.stride))


class BroadcastMode(enum.Enum):
    ELEMENTWISE_ADDITON, ELEMENTWISE_MULTIPLICATION = 0, 1


def _of_batches(x, glob, source):
    """A batch's row for every row."""
    plan = F.segments(source.rows[:, 0].contiguous(), len(glob), num_rows=len(x), gradients="linear")
    return F.gather(glob, plan)


class MinkowskiBroadcastFunction:
    @staticmethod
    def apply(x, glob, mode, source, target, manager):
        rows = _of_batches(x, glob, source)
        return x + rows if mode is BroadcastMode.ELEMENTWISE_ADDITON else x * rows


class _Broadcast(nn.Module):
    operation_type = None

    def forward(self, x, glob):
        source = x.coordinate_map_key
        if self.operation_type is None:
            rows = _of_batches(x.F, glob.F, source)
            return x.at(torch.cat([x.F, rows], 1) if self.side_by_side else rows)
        return x.at(MinkowskiBroadcastFunction.apply(x.F, glob.F, self.operation_type, source, glob.coordinate_map_key, x._manager))


MinkowskiBroadcast = _kind(_Broadcast, "MinkowskiBroadcast", side_by_side=False)
MinkowskiBroadcastConcatenation = _kind(_Broadcast, "MinkowskiBroadcastConcatenation", side_by_side=True)
MinkowskiBroadcastAddition = _kind(_Broadcast, "MinkowskiBroadcastAddition", operation_type=BroadcastMode.ELEMENTWISE_ADDITON)
MinkowskiBroadcastMultiplication = _kind(
    _Broadcast, "MinkowskiBroadcastMultiplication", operation_type=BroadcastMode.ELEMENTWISE_MULTIPLICATION
)


class MinkowskiInstanceNormFunction:
    @staticmethod
    def apply(x, source, target, manager):
        mean = MinkowskiGlobalPoolingFunction.apply(x, "mean", source, None, manager)
        x = x - _of_batches(x, mean, source)
        var = MinkowskiGlobalPoolingFunction.apply(x * x, "mean", source, None, manager)
        return x / torch.sqrt(_of_batches(x, var, source) + 1e-8)


class MinkowskiInstanceNorm(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1, num_features)), nn.Parameter(torch.zeros(1, num_features))

    def forward(self, x):
        y = MinkowskiInstanceNormFunction.apply(x.F, x.coordinate_map_key, None, x._manager)
        return x.at(y * self.weight + self.bias)


def interpolate(x, places, source):
    """Linear between the rows around a place; a place is the centre of a cell that is one stride wide."""
    size = [float(s) for s in source.stride]
    d = F.devoxels(
        places[:, 1:].float().contiguous(), source.plan, batch=places[:, 0].int(), size_m=size, origin_m=[-s / 2 for s in size],
        interpolation="linear", gradients="linear",
    )  # fmt: skip
    return F.segreduce(x, F.devoxels_segments(d), w=F.devoxels_weights(d), reduce="sum")


class MinkowskiInterpolationFunction:
    @staticmethod
    def apply(x, places, source, manager):
        return interpolate(x, places, source)


class MinkowskiInterpolation(nn.Module):
    def __init__(self, return_kernel_map=False, return_weights=False):
        super().__init__()
        self.return_kernel_map = return_kernel_map

    def forward(self, x, places):
        out = interpolate(x.F, places, x.coordinate_map_key)
        return (out, (None, None)) if self.return_kernel_map else out


class MinkowskiSPMMFunction:
    @staticmethod
    def apply(rows, cols, vals, size, mat):
        plan = F.segments(rows.int(), size[0], idx=cols.int(), weight_idx=torch.arange(len(rows)).int(), num_rows=len(mat), num_weights=len(rows), gradients="linear")
        return F.segreduce(mat, plan, w=vals[:, None].to(mat.dtype), reduce="sum")


class MinkowskiSPMMAverageFunction:
    @staticmethod
    def apply(rows, cols, size, mat):
        plan = F.segments(rows.int(), size[0], idx=cols.int(), num_rows=len(mat), gradients="linear")
        return F.segreduce(mat, plan, reduce="mean")


class MinkowskiDirectMaxPoolingFunction:
    @staticmethod
    def apply(in_map, out_map, x, num_out):
        plan = F.segments(out_map.int(), num_out, idx=in_map.int(), num_rows=len(x), gradients="all")
        out, row = F.segreduce(x, plan, reduce="max", arg=True)
        return torch.where(row < 0, out.new_zeros(()), out)


def spmm(rows, cols, vals, size, mat, is_sorted=False, cuda_spmm_alg=1):
    return MinkowskiSPMMFunction.apply(rows, cols, vals, size, mat)


def batched_coordinates(parts, dtype=torch.int32, device=None):
    rows = [torch.cat([torch.full((len(c), 1), i), torch.as_tensor(c).floor()], 1) for i, c in enumerate(parts)]
    return torch.cat(rows).to(dtype)


def sparse_collate(coords, feats, labels=None, **_):
    return batched_coordinates(coords), torch.cat([torch.as_tensor(f) for f in feats])


def unique_coordinate_map(coordinates, tensor_stride=1):
    _, first, inverse = distinct(coordinates)
    return first, inverse


def modules() -> dict[str, types.ModuleType]:
    """Under the names that MinkowskiEngine's tests import; a name that is not here fails where it is called."""

    def module(name, **values):
        m = types.ModuleType(name)
        vars(m).update(values)

        def missing(n):
            if n.startswith("__"):
                raise AttributeError(n)

            def refuse(*_, **__):
                raise NotImplementedError(f"{name}.{n} is not in the adapter")

            return refuse

        m.__getattr__ = missing
        return m

    utils = module("MinkowskiEngine.utils", batched_coordinates=batched_coordinates, sparse_collate=sparse_collate, unique_coordinate_map=unique_coordinate_map)
    mine = {k: v for k, v in globals().items() if not k.startswith("_") and k not in ("utils", "modules")}
    types_of_maps = types.SimpleNamespace(CPU=0, CUDA=1)
    whole = module("MinkowskiEngine", **mine, CoordinateManager=Manager, CoordinateMapType=types_of_maps, utils=utils, is_cuda_available=lambda: True)
    backend = module("MinkowskiEngineBackend._C", ConvolutionMode=types.SimpleNamespace(DIRECT_GEMM=0, COPY_GEMM=1))
    check = module("utils.gradcheck", gradcheck=lambda f, inputs, **more: torch.autograd.gradcheck(lambda *x: f.apply(*x), inputs, **more))
    parent = module("MinkowskiEngineBackend", _C=backend)
    return {m.__name__: m for m in (whole, utils, backend, parent, check, module("utils", gradcheck=check))}
