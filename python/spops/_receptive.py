# SPDX-License-Identifier: Apache-2.0
"""The receptive field of a network (spops/receptive.h): of layers that are listed, and of a network that runs."""
from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from . import _library, _structs

KINDS = "row", "submanifold", "convolution", "transposed", "linear", "window", "all"
_UNBOUNDED = 2**63 - 1


_call = _library.function("spops_receptive_field", ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(_structs.ReceptiveLayer),
                         ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(_structs.Reach))  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """A layer of a network, as spops_receptive_layer has it.

    kind : one of KINDS
    of : the values that it reads; 0 is the input of the network, i + 1 what layer i gives
    size, stride, padding, dilation, shift : one number, or one for each axis
    """

    kind: str
    of: tuple[int, ...] = (0,)
    size: int | Sequence[int] = 1
    stride: int | Sequence[int] = 1
    padding: int | Sequence[int] = 0
    dilation: int | Sequence[int] = 1
    shift: int | Sequence[int] = 0


@dataclass(frozen=True)
class Reach:
    """Which voxels of a level an output may depend on.

    stride : voxels of the input along a voxel of the level, for each axis
    lower, upper : voxels of the level before and after the one that the output lies in; math.inf: all
    lower_m, upper_m : the same from the output's voxel on, in m (0 where no size was given)
    """

    stride: tuple[int, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    lower_m: tuple[float, ...]
    upper_m: tuple[float, ...]

    @property
    def is_bounded(self) -> bool:
        return all(math.isfinite(n) for n in (*self.lower, *self.upper))

    @property
    def most(self) -> float:
        """The largest number of voxels of lower and upper."""
        return max(*self.lower, *self.upper)

    @property
    def most_m(self) -> float:
        return max(*self.lower_m, *self.upper_m)

    def __or__(self, other: Reach) -> Reach:
        """What either of the two reads."""
        return Reach(self.stride, *(tuple(map(max, getattr(self, n), getattr(other, n))) for n in ("lower", "upper", "lower_m", "upper_m")))


def _per_axis(value, dims: int) -> tuple[int, ...]:
    return (int(value),) * dims if isinstance(value, int) else tuple(int(v) for v in value)


def receptive_field(layers: Sequence[Layer], dims: int = 3, size_m: float | Sequence[float] | None = None, output: int | None = None) -> list[Reach]:
    """The reach of an output at each level of a network, the input's first.

    Parameters
    ----------
    layers : Layers, each after those that it reads
    dims : axes, 1 to 4
    size_m : m, of a voxel of the input; one for all axes or one for each
    output : the value that is asked about; None: what the last layer gives

    Returns
    -------
    A Reach for each stride that a value has which the output reads, by ascending stride: the union of those
    of the values with this stride.

    Raises
    ------
    ValueError, NotImplementedError : as spops_receptive_field.
    """
    n = len(layers)
    shapes, rows = (_structs.KernelShape * n)(), (_structs.ReceptiveLayer * n)()
    for layer, shape, row in zip(layers, shapes, rows):
        if layer.kind not in KINDS:
            raise ValueError(f"receptive_field: kind is {layer.kind!r}, expected one of {' '.join(KINDS)}")
        of = [*layer.of, -1][:2]
        shape.struct_size, shape.dims = ctypes.sizeof(shape), dims
        for name in ("size", "stride", "padding", "dilation"):
            for a, v in enumerate(_per_axis(getattr(layer, name), dims)):
                getattr(shape, name)[a] = v
        row.kind, row.kernel = KINDS.index(layer.kind), ctypes.pointer(shape)
        setattr(row, "from", (ctypes.c_int32 * 2)(*of))
        for a, v in enumerate(_per_axis(layer.shift, dims)):
            row.shift[a] = v
    size = None
    if size_m is not None:
        sizes = [float(size_m)] * dims if isinstance(size_m, (int, float)) else [float(s) for s in size_m]
        if len(sizes) != dims:
            raise ValueError(f"receptive_field: size_m has {len(sizes)} numbers, expected {dims}, or one for all axes")
        size = (ctypes.c_double * dims)(*sizes)
    found = (_structs.Reach * (n + 1))()
    _library.fail(_call(dims, size, rows, n, n if output is None else output, found))
    levels: dict[tuple, Reach] = {}
    for r in found:
        if r.is_read:
            voxels = [tuple(math.inf if v == _UNBOUNDED else v for v in getattr(r, name)[:dims]) for name in ("lower", "upper")]
            reach = Reach(tuple(r.stride[:dims]), *voxels, tuple(r.lower_m[:dims]), tuple(r.upper_m[:dims]))
            levels[reach.stride] = levels[reach.stride] | reach if reach.stride in levels else reach
    return [levels[s] for s in sorted(levels, key=lambda s: (math.prod(s), s))]


# ---- Of a network that runs ---------------------------------------------------------------------


class Recorder:
    """The layers that a network runs, in their order. A layer is taken to read the last value of its stride.

    That is never too little, because the last value of a stride stands for all that were there before it. Layers that
    other threads run meanwhile are not the network's.
    """

    def __init__(self, dims: int):
        self.layers, self.kernels, self.thread = [], {}, threading.get_ident()
        self.begin(dims)

    @property
    def is_of_another(self) -> bool:
        return threading.get_ident() != self.thread

    def begin(self, dims: int) -> None:
        if not self.layers:
            self.dims, self.last = dims, {(1,) * dims: 0}

    def add(self, kind: str, at: Sequence[int], into: Sequence[int] | None = None, **shape) -> None:
        """at: the stride of the rows that the layer reads; into: of those that it gives."""
        at, into = tuple(at), tuple(at if into is None else into)
        if at not in self.last:
            raise ValueError(f"receptive_field_of: a layer reads rows of stride {at}, which no layer gave")
        self.layers.append(Layer(kind, (self.last[at],), **shape))
        value = len(self.layers)
        if into in self.last and into != at:  # rows of finer levels meet those that were there
            self.layers.append(Layer("row", (value, self.last[into])))
            value += 1
        self.last[into] = value

    def convolution(self, x, kernel, how: str, key) -> None:
        if self.is_of_another:
            return
        self.begin(x.dims)
        stride = x.stride
        if how == "inverse":
            kernel = self.kernels.get(key, kernel)
        elif key is not None:
            self.kernels[key] = kernel
        shape = dict(size=kernel.size, stride=kernel.stride, padding=kernel.padding, dilation=kernel.dilation)
        if how == "submanifold":
            self.add("submanifold", stride, size=kernel.size, dilation=kernel.dilation)
        elif how == "convolution":
            self.add("convolution", stride, [s * k for s, k in zip(stride, kernel.stride)], **shape)
        else:
            self.add("transposed", stride, [max(s // k, 1) for s, k in zip(stride, kernel.stride)], **shape)

    def devoxelize(self, x, interpolation: str) -> None:
        if self.is_of_another:
            return
        self.begin(x.dims)
        is_near = interpolation == "nearest" and max(x.stride) <= 7  # sizes of kernels end there; linear reads more
        self.add("transposed" if is_near else "linear", x.stride, (1,) * self.dims, size=x.stride if is_near else 1, stride=x.stride)

    def everything(self) -> None:
        """A layer that reads all rows."""
        if self.is_of_another:
            return
        for stride in list(self.last):
            self.add("all", stride)


recorder: Recorder | None = None
_one = threading.RLock()  # a recorder at a time


def receptive_field_of(net, *inputs, size_m: float | Sequence[float] | None = None, **named) -> list[Reach]:
    """The reach of what net gives, at each level, found by running net once.

    Parameters
    ----------
    net : callable
        Takes the inputs. Its convolutions, pools and norms are those of spops.nn (or spops.spconv), and
        devoxelize; among the inputs, or made by net, is one SparseTensor of stride 1.
    size_m : m, of a voxel of the input

    Returns
    -------
    As :func:`receptive_field`. Not seen, and for the caller to add: functions of spops.functional that net calls
    itself, attention above all.

    Raises
    ------
    ValueError : strides that are those of no level.
    """
    import torch

    from ._tensor import SparseTensor

    global recorder
    dims = next((x.dims for x in (*inputs, *named.values()) if isinstance(x, SparseTensor)), 3)
    with _one:
        before, mine = recorder, Recorder(dims)
        recorder = mine
        try:
            with torch.no_grad():
                net(*inputs, **named)
        finally:
            recorder = before
    found: dict[tuple, Reach] = {}
    for output in mine.last.values():  # whichever net returns
        for r in receptive_field(mine.layers, mine.dims, size_m, output):
            found[r.stride] = found[r.stride] | r if r.stride in found else r
    return [found[s] for s in sorted(found, key=lambda s: (math.prod(s), s))]
