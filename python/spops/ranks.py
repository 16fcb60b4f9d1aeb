# SPDX-License-Identifier: Apache-2.0
"""A network over ranks with the bits of one rank, for PyTorch (spops/partition.h, spops/halo.h; docs/ranks.md).

    partition = Partition(comm, my_rows)                 which rank owns which place
    rows, feats = partition.to_owners(my_rows, my_feats)
    levels = make_levels(partition, rows, 3)             halos, and plans as layers ask for them
    x = feats[levels[0].items]                           owned rows, by chunk
    y = norm(conv(x, levels[0]), levels[0])              layers take owned rows and a level

All ranks make the same calls in the same order, backward too: one thread or process runs one network. Gradients of
weights are those of all ranks when backward returns.
"""
from __future__ import annotations

import ctypes as _c
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import _made
from . import functional as F
from . import nn as _nn
from ._library import fail as _fail
from ._library import function as _function
from ._plan import Plan
from ._tensor import per_axis
from ._structs import Matrix
from .comm import Comm, CommBroken

_halo_begin = _function("spops_halo_begin", _c.c_int, _c.c_void_p, _c.c_void_p, Matrix, Matrix)
_halo_end = _function("spops_halo_end", _c.c_int, _c.c_void_p, _c.c_void_p)
_orders = ("morton", "hilbert")


def _agreed(comm: Comm, make):
    """What make gives; an error of one rank is one of all."""
    made, failed = None, None
    try:
        made = make()
    except CommBroken:
        raise
    except Exception as error:
        failed = error
    comm.agree(failed)
    return made


def _same(comm: Comm, name: str, value: int) -> None:
    """An error on all ranks where one has another number than rank 0."""
    numbers = [int.from_bytes(b, "little", signed=True) for b in comm.gather(int(value).to_bytes(8, "little", signed=True))]
    for r, n in enumerate(numbers):
        if n != numbers[0]:
            raise ValueError(f"{name} is {n} on rank {r}, {numbers[0]} on rank 0")


def _set(comm: Comm, rows: Tensor, **options) -> Plan:
    if rows.dim() != 2 or not 2 <= rows.shape[1] <= 5 or rows.is_floating_point() or rows.device != comm.device:
        raise ValueError(f"rows are {list(rows.shape)} of {rows.dtype} on {rows.device}, expected integers [N, 1 + D] on {comm.device}")
    return F.coords(rows.contiguous(), **options)


class Partition:
    """Which rank owns which places: runs of chunks, which are cut at fixed places of a curve.

    Parameters
    ----------
    comm : Comm
        All its ranks call.
    rows : Tensor [N, 1 + D], integers
        Rows of the finest level that this rank has, in any order; all ranks together have each row once.
    weights : Tensor [N], integers, optional
        What a row costs, 0 to 2^31 - 1. None: 1 each.
    num_chunks, cell_log2, order
        As ``spops_partition_options`` has them; the same on all ranks.
    first_chunk : sequence of num_ranks + 1 ints, optional
        Rank r owns chunks first_chunk[r] to first_chunk[r + 1] - 1. None: balanced by weights.

    Attributes
    ----------
    plan : Plan of kind partition
    first_chunk, chunk_weights : lists
    dims, num_chunks, cell_log2 : int

    Raises
    ------
    What is refused on one rank is an error on all.
    """

    def __init__(self, comm: Comm, rows: Tensor, *, weights: Tensor | None = None, num_chunks: int = 16, cell_log2: int = 4,
                 order: str = "hilbert", first_chunk: Sequence[int] | None = None):  # fmt: skip
        def ready():
            if order not in _orders:
                raise ValueError(f"Partition: order is {order!r}, expected one of {', '.join(_orders)}")
            if first_chunk is not None and len(first_chunk) != comm.num_ranks + 1:
                raise ValueError(f"Partition: first_chunk has {len(first_chunk)} numbers, expected {comm.num_ranks + 1}")
            if weights is not None and (weights.shape != rows.shape[:1] or weights.is_floating_point() or weights.device != comm.device):
                raise ValueError(f"Partition: weights are {list(weights.shape)} of {weights.dtype}, expected integers [{rows.shape[0]}] on {comm.device}")
            return _set(comm, rows)

        given = _agreed(comm, ready)
        self.comm, self.order = comm, order
        self.plan = F.partition(given, comm=comm, weights=None if weights is None else weights.to(torch.int64).contiguous(), num_chunks=num_chunks,
                                cell_log2=cell_log2, order=order, first_chunk=first_chunk)  # fmt: skip
        self.dims, self.num_chunks, self.cell_log2 = self.plan.dims, self.plan.num_chunks, self.plan.cell_log2
        self.first_chunk, self.chunk_weights = (t.tolist() for t in F.partition_chunks(self.plan))
        self._sums: Plan | None = None

    @classmethod
    def of_all_rows(cls, comm: Comm, rows: Tensor, *, weights: Tensor | None = None, **options) -> Partition:
        """A partition where every rank has all rows: each gives a slice of them."""
        begin, end = (len(rows) * (comm.rank + r) // comm.num_ranks for r in (0, 1))
        return cls(comm, rows[begin:end], weights=None if weights is None else weights[begin:end], **options)

    def box(self, stride: int | Sequence[int] = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Lower and upper ends of a level, batch first: those of a set whose rows lie by chunk."""
        lower, upper = F.partition_box(self.plan, stride=per_axis(stride, self.dims, "Partition: stride"))
        return tuple(lower.tolist()), tuple(upper.tolist())

    def find_chunks(self, rows: Tensor, stride: int | Sequence[int] = 1) -> Tensor:
        """The chunk of each row, i32 in host memory; -1 for a row outside the box."""
        strides = per_axis(stride, self.dims, "Partition: stride")
        return F.partition_find(rows.to(self.comm.device).contiguous(), self.plan, stride=strides).cpu()

    def owners(self, rows: Tensor, stride: int | Sequence[int] = 1) -> Tensor:
        """The rank that owns each row, i64 in host memory; -1 for a row outside the box."""
        chunks = self.find_chunks(rows, stride)
        first = torch.tensor(self.first_chunk[1:], dtype=torch.int32, device="cpu")
        return torch.where(chunks < 0, -1, torch.searchsorted(first, chunks, right=True))

    def to_owners(self, rows: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """Send rows, and matrices of as many rows, to their owners; what this rank owns of all ranks' is returned.

        Values have no gradients here. The order follows from who had the rows: a halo puts them in its own."""
        comm = self.comm

        def ready():
            for v in values:
                if v.dim() != 2 or len(v) != len(rows) or v.device != comm.device:
                    raise ValueError(f"Partition: values are {list(v.shape)} on {v.device}, expected [{len(rows)}, cols] on {comm.device}")
            owners = self.owners(rows)
            if bool((owners < 0).any()):
                raise ValueError(f"Partition: row {int((owners < 0).nonzero()[0])} is outside the box that was cut")
            return owners

        owners = _agreed(comm, ready)
        _same(comm, "Partition: number of values", len(values))
        order = torch.argsort(owners, stable=True).to(comm.device)
        counts = [int(n) for n in torch.bincount(owners, minlength=comm.num_ranks)]
        sizes = comm.gather(bytes((_c.c_int64 * comm.num_ranks)(*counts)))
        received = [(_c.c_int64 * comm.num_ranks).from_buffer_copy(s)[comm.rank] for s in sizes]
        layout = counts, _begins(counts), received, _begins(received)
        out = []
        for v in (_made._indices(rows), *values):
            recv = v.new_empty((sum(received), v.shape[1]))
            comm.exchange(v.detach()[order].contiguous(), recv, *layout)
            out.append(recv)
        return tuple(out)

    def chunk_sums(self, partials: Tensor) -> Tensor:
        """Sums over the chunks of all ranks, along one tree for any number of ranks.

        partials : f32 [chunks of this rank, n]; returned is f32 [n], the same on all ranks.
        """
        if partials.dim() == 2 and (self._sums is None or self._sums.max_values < partials.shape[1]):
            self._sums = F.chunk_sums_plan(self.plan, self.comm, max(partials.shape[1], 1024))
        return F.chunk_sums(partials, self._sums)


def _begins(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:r]) for r in range(len(counts))]


class Halo:
    """The rows of a level on this rank, [owned | ghosts], and their exchange.

    Parameters
    ----------
    partition : Partition
        All its ranks call.
    rows : Tensor [N, 1 + D], integers
        Rows that this rank owns, in any order.
    stride : int or D ints
        Voxels of the finest level that a voxel of this one has along each axis.
    reach : int or D ints
        Voxels of this level that are read on either side.
    max_cols : int
        Of the widest rows that are refreshed.

    Attributes
    ----------
    plan : Plan of kind halo
    rows : Tensor [num_owned + num_ghosts, 1 + D], i32
    items : Tensor [num_owned], i64
        Which of the given rows each owned row is: ``feats[halo.items]`` are features of owned rows.
    num_owned, num_ghosts, num_all_rows : int
        num_all_rows counts owned rows of all ranks.
    chunk_offsets : list
        Owned rows chunk_offsets[i] to chunk_offsets[i + 1] - 1 are of this rank's chunk i.
    """

    def __init__(self, partition: Partition, rows: Tensor, *, stride: int | Sequence[int] = 1, reach: int | Sequence[int] = 1,
                 max_cols: int = 256):  # fmt: skip
        comm = partition.comm

        def ready():
            strides = per_axis(stride, partition.dims, "Halo: stride")
            lower, upper = partition.box(strides)
            return strides, per_axis(reach, partition.dims, "Halo: reach"), _set(comm, rows, order=partition.order, lower=lower, upper=upper)

        self.stride, self.reach, owned = _agreed(comm, ready)
        self.partition = partition
        self.plan = F.halo(owned, partition.plan, comm, stride=self.stride, reach=self.reach, max_cols=max_cols)
        self.items = F.coords_rows(owned, items=True)[2].long()
        self.num_owned, self.num_ghosts, self.num_all_rows = self.plan.num_owned, self.plan.num_ghosts, self.plan.num_all_rows
        offsets, self.all_chunk_rows = F.halo_chunks(self.plan)
        self.chunk_offsets = offsets.tolist()
        self.rows = F.coords_rows(F.halo_coords(self.plan))[0]

    @property
    def num_rows(self) -> int:
        return self.num_owned + self.num_ghosts

    def chunks(self) -> list[slice]:
        """Owned rows of each of this rank's chunks."""
        return [slice(a, b) for a, b in zip(self.chunk_offsets, self.chunk_offsets[1:])]

    def refresh(self, x: Tensor) -> Tensor:
        """Rows [owned | ghosts] of owned rows x, with what the ghosts' owners have.

        Gradients of ghosts are dropped: nothing is folded, since sums that are cut by rank have other bits for
        another number of ranks. Put :meth:`own` after what reads the ghosts: its gradient brings those of ghosts'
        outputs here, and the owner computes the whole gradient of its row. What stands between the two has no
        parameters, and a gradient that follows from those of its outputs alone: a convolution with fixed weights and
        a plan that is crop_independent; a sum of neighbours (a mean divides by what a ghost has here; a maximum may be
        of a row that is not here). Layers of this module have both, and parameters.
        """
        return _Refresh.apply(x, self)

    def own(self, y: Tensor) -> Tensor:
        """Owned rows of rows [owned | ghosts]; the gradient has that of ghosts, by their owners."""
        return _Own.apply(y, self)

    def _filled(self, x: Tensor) -> Tensor:
        return F.halo_refresh(x, self.plan)  # refuses another number of rows, on all ranks that are threads

    def _begin(self, x: Tensor) -> None:
        """Rows [owned | ghosts], whose ghosts travel until _end."""
        ctx = self.partition.comm._context()
        every = self.partition.comm._matrix(x, "x")
        owned = Matrix(every.data, self.num_owned, every.cols, every.row_stride, every.dtype)
        _fail(_halo_begin(ctx, self.plan.handle, owned, every), ctx)

    def _end(self) -> None:
        ctx = self.partition.comm._context()
        _fail(_halo_end(ctx, self.plan.handle), ctx)


class _Refresh(Function):
    @staticmethod
    def forward(ctx, x, halo):
        ctx.num = halo.num_owned
        return halo._filled(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad[: ctx.num], None


class _Own(Function):
    @staticmethod
    def forward(ctx, y, halo):
        if y.shape[0] != halo.num_rows:
            raise ValueError(f"Halo: own takes {halo.num_rows} rows, got {y.shape[0]}")
        ctx.halo = halo
        return y[: halo.num_owned].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return ctx.halo._filled(grad), None


class _Relation:
    """A convolution's plan on this rank, and one for the gradients of weights of each chunk of outputs."""

    def __init__(self, map: Plan, chunk_maps: list[Plan], source: Level, to: Level, reads_ghosts: bool):
        self.map, self.chunk_maps, self.source, self.to = map, chunk_maps, source, to
        self.reads_ghosts, self._plans = reads_ghosts, {}

    def plans(self, channels: int) -> tuple[Plan, list[Plan]]:
        width = 256 if self.map.num_taps <= 64 else 32  # scratch is taps x width^2
        while width < channels:
            width *= 2
        if width not in self._plans:
            how = dict(backward=True, max_in_channels=width, max_out_channels=width, crop_independent=True)
            self._plans[width] = F.sparseconv_plan(self.map, **how), [F.sparseconv_plan(m, **how) for m in self.chunk_maps]
        return self._plans[width]

    def inverse(self) -> _Relation:
        return _Relation(F.kernel_map_inverse(self.map), [F.kernel_map_inverse(m) for m in self.chunk_maps], self.to, self.source, False)


class Level:
    """A level of a network: a halo, and the plans of layers that run there, made when the first layer asks.

    Parameters
    ----------
    halo : Halo
    finer : Level, optional
        The level with half the stride, from which the owned rows come.
    """

    def __init__(self, halo: Halo, finer: Level | None = None):
        self.halo, self.finer = halo, finer
        self._made: dict = {}

    partition = property(lambda self: self.halo.partition)
    num_owned = property(lambda self: self.halo.num_owned)
    num_all_rows = property(lambda self: self.halo.num_all_rows)
    items = property(lambda self: self.halo.items)

    @property
    def rows(self) -> Tensor:
        """Owned rows, i32 [num_owned, 1 + D]."""
        return self.halo.rows[: self.num_owned]

    def sum(self, x: Tensor) -> Tensor:
        """Sums of the columns of owned rows over all ranks, f32 [cols]: of a loss. Added by chunk."""
        return _Sum.apply(x, self)

    def _set(self, rows: Tensor) -> Plan:
        lower, upper = self.partition.box(self.halo.stride)
        return F.coords(rows.contiguous(), lower=lower, upper=upper)

    def _chunk_sets(self) -> list[Plan]:
        return self._once("chunks", lambda: [self._set(self.rows[c]) for c in self.halo.chunks()])

    def _once(self, key, make):
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _owned_set(self) -> Plan:
        return self._once("owned", lambda: self._set(self.rows))

    def _within(self, size, dilation) -> _Relation:
        """Of a submanifold convolution: all local rows, and onto the rows of each chunk."""

        def make():
            for s, d, r in zip(size, dilation, self.halo.reach):
                if s % 2 == 0 or d * (s // 2) > r:
                    raise ValueError(f"Level: a kernel of size {s} and dilation {d} reads {d * (s // 2)} voxels on either side, and needs an odd size; the halo's reach is {r}")
            every = self._once("all", lambda: self._set(self.halo.rows))
            window = dict(size=size, dilation=dilation)
            maps = [F.kernel_map(every, c, kind="convolution", padding=[d * (s // 2) for s, d in zip(size, dilation)], **window) for c in self._chunk_sets()]
            return _Relation(F.kernel_map(every, kind="submanifold", **window), maps, self, self, True)

        return self._once(("within", size, dilation), make)

    def _down(self) -> _Relation:
        """From the finer level. Windows lie in cells, so owned rows are enough."""
        if self.finer is None:
            raise ValueError("Level: it is the finest one")

        def make():
            window = dict(kind="convolution", size=2, stride=2)
            maps = [F.kernel_map(f, c, **window) for f, c in zip(self.finer._chunk_sets(), self._chunk_sets())]
            return _Relation(F.kernel_map(self.finer._owned_set(), self._owned_set(), **window), maps, self.finer, self, False)

        return self._once("down", make)

    def _up(self) -> _Relation:
        return self._once("up", lambda: self._down().inverse())


def make_levels(partition: Partition, rows: Tensor, num_levels: int = 1, *, reach: int | Sequence[int] = 1, max_cols: int = 256) -> list[Level]:
    """Levels of a network: owned rows of the finest, in any order, and of each next one the cells of 2^D of them.

    All ranks call. Reach and max_cols are those of :class:`Halo`, on every level."""
    levels: list[Level] = []
    _same(partition.comm, "make_levels: num_levels", num_levels)
    for n in range(num_levels):
        if n > 0:
            lower, upper = partition.box(2**n)
            made = _agreed(partition.comm, lambda: F.coords_down(levels[-1]._owned_set(), size=2, stride=2, order=partition.order, lower=lower, upper=upper))
            rows = F.coords_rows(made)[0]
        halo = Halo(partition, rows, stride=2**n, reach=reach, max_cols=max_cols)
        levels.append(Level(halo, levels[-1] if levels else None))
    return levels


# ---- Layers ----


class _Sum(Function):
    @staticmethod
    def forward(ctx, x, level):
        ctx.rows, ctx.dtype = x.shape[0], x.dtype
        partials = x.new_empty((len(level.halo.chunks()), x.shape[1]), dtype=torch.float32)
        for n, c in enumerate(level.halo.chunks()):  # a plan of one segment: its bits follow from the chunk alone
            offsets = torch.tensor([0, c.stop - c.start], dtype=torch.int32, device=x.device)
            plan = level._once(("segment", n), lambda: F.segments_offsets(offsets, num_rows=c.stop - c.start))
            partials[n] = F.segreduce(x[c].float(), plan)[0]
        return level.partition.chunk_sums(partials)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad.to(ctx.dtype).expand(ctx.rows, -1), None


class _Convolution(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, relation):
        conv, _ = relation.plans(max(weight.shape[1:]))
        w = weight.to(x.dtype).contiguous()
        x = relation.source.halo._filled(x) if relation.reads_ghosts else x.contiguous()
        ctx.save_for_backward(x, w)
        ctx.relation, ctx.dtype, ctx.has_bias = relation, weight.dtype, bias is not None
        return F.sparseconv(x, w, conv, bias=bias)[: relation.to.num_owned]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x, w), r = ctx.saved_tensors, ctx.relation
        conv, chunk_convs = r.plans(max(w.shape[1:]))
        grad, of_x = grad.contiguous(), ctx.needs_input_grad[0]
        every = grad
        if r.reads_ghosts and of_x:  # ghosts' gradients travel while those of weights are computed
            every = torch.cat([grad, grad.new_empty((r.to.halo.num_ghosts, grad.shape[1]))])
            r.to.halo._begin(every)
        partials = _partials(r.to, w, ctx.has_bias)
        for n, (into, out) in enumerate(zip(r.source.halo.chunks(), r.to.halo.chunks())):
            taken = x if r.reads_ghosts else x[into]
            gw, gb = _parts_of(partials[n], w, ctx.has_bias)
            F.sparseconv_backward(taken, w, grad[out], chunk_convs[n], grad_x=False, grad_w=gw, grad_bias=gb)
        if r.reads_ghosts and of_x:
            r.to.halo._end()
        gw, gb = _summed(r.to, partials, w, ctx.has_bias, ctx.dtype)
        gx = F.sparseconv_backward(x, w, every, conv, grad_w=False, grad_bias=False) if of_x else None
        gx = gx[0] if isinstance(gx, tuple) else gx
        return (gx[: r.source.num_owned] if of_x else None), gw, gb, None


class _Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, level):
        w = weight.to(x.dtype).contiguous()
        ctx.save_for_backward(x, w)
        ctx.level, ctx.dtype, ctx.has_bias = level, weight.dtype, bias is not None
        return F.linear(x, w, bias=bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x, w), level = ctx.saved_tensors, ctx.level
        grad, partials = grad.contiguous(), _partials(level, w, ctx.has_bias)
        for n, c in enumerate(level.halo.chunks()):
            gw, gb = _parts_of(partials[n], w, ctx.has_bias)
            F.linear_backward(x[c], w, grad[c], grad_x=False, grad_w=gw, grad_bias=gb)
        gw, gb = _summed(level, partials, w, ctx.has_bias, ctx.dtype)
        gx = None
        if ctx.needs_input_grad[0]:
            gx = F.linear_backward(x, w, grad, grad_w=False, grad_bias=False)
            gx = gx[0] if isinstance(gx, tuple) else gx
        return gx, gw, gb, None


def _partials(level: Level, w: Tensor, has_bias: bool) -> Tensor:
    """Gradients of weights and bias of each chunk of this rank."""
    num = w.numel() + (w.shape[-1] if has_bias else 0)
    return torch.empty((len(level.halo.chunks()), num), dtype=torch.float32, device=w.device)


def _parts_of(row: Tensor, w: Tensor, has_bias: bool):
    return row[: w.numel()].view(w.shape), row[w.numel() :] if has_bias else False


def _summed(level: Level, partials: Tensor, w: Tensor, has_bias: bool, dtype: torch.dtype):
    gw, gb = _parts_of(level.partition.chunk_sums(partials), w, has_bias)
    return gw.to(dtype), gb if has_bias else None


class _BatchNorm(Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, running_mean, running_var, level, momentum, epsilon, activation, slope):
        comm, cols, halo, first = level.partition.comm, x.shape[1], level.halo, level.partition.first_chunk
        x = x.contiguous()
        own, every = (x.new_empty((n, 2 * cols), dtype=torch.float32) for n in (len(halo.chunks()), level.partition.num_chunks))
        for n, c in enumerate(halo.chunks()):
            F.batchnorm_statistics(x[c], mean=own[n, :cols], var=own[n, cols:])
        ranks = range(comm.num_ranks)
        comm.exchange(own, every, [len(own)] * len(ranks), [0] * len(ranks), [first[r + 1] - first[r] for r in ranks], first[:-1])
        mean, var = F.batchnorm_merge(every, halo.all_chunk_rows, momentum, running_mean=running_mean, running_var=running_var)[:2]
        ctx.save_for_backward(x, mean, var, gamma, beta)
        ctx.level, ctx.how = level, dict(epsilon=epsilon, activation=activation, activation_slope=slope)
        return _made.batchnorm_raw(x, mean, var, gamma, beta, None, None, epsilon, activation, slope)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, mean, var, gamma, beta = ctx.saved_tensors
        level, cols = ctx.level, x.shape[1]
        grad = grad.to(x.dtype).contiguous()
        partials = x.new_empty((len(level.halo.chunks()), 2 * cols), dtype=torch.float32)
        for n, c in enumerate(level.halo.chunks()):
            to = partials[n]
            F.batchnorm_sums(x[c], mean, var, grad[c], gamma=gamma, beta=beta, grad_gamma=to[:cols], grad_beta=to[cols:], **ctx.how)
        sums = level.partition.chunk_sums(partials)
        gx = F.batchnorm_gradient(x, mean, var, sums[:cols], sums[cols:], grad, level.num_all_rows, gamma=gamma, beta=beta, **ctx.how)
        needs = ctx.needs_input_grad
        return gx, sums[:cols] if needs[1] else None, sums[cols:] if needs[2] else None, None, None, None, None, None, None, None


class _Layer(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, taps: int, bias: bool, shape: tuple[int, ...]):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape, in_channels, out_channels))
        bound = (taps * in_channels) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None


class SubmanifoldConv(_Layer):
    """Convolution within a level. Its kernel reaches no further than the level's halo."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Sequence[int] = 3, dilation: int | Sequence[int] = 1,
                 bias: bool = False, dims: int = 3):  # fmt: skip
        size = per_axis(kernel_size, dims, "kernel_size")
        taps = math.prod(size)
        super().__init__(in_channels, out_channels, taps, bias, (taps,))
        self.size, self.dilation = size, per_axis(dilation, dims, "dilation")

    def forward(self, x: Tensor, level: Level) -> Tensor:
        """x: owned rows of level."""
        return _Convolution.apply(x, self.weight, self.bias, level._within(self.size, self.dilation))


class DownConv(_Layer):
    """Convolution of size and stride 2 onto the next coarser level."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = False, dims: int = 3):
        super().__init__(in_channels, out_channels, 2**dims, bias, (2**dims,))

    def forward(self, x: Tensor, level: Level) -> Tensor:
        """x: owned rows of level.finer; returned are those of level."""
        return _Convolution.apply(x, self.weight, self.bias, level._down())


class UpConv(_Layer):
    """The way back from a level onto its finer one."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = False, dims: int = 3):
        super().__init__(in_channels, out_channels, 1, bias, (2**dims,))

    def forward(self, x: Tensor, level: Level) -> Tensor:
        """x: owned rows of level; returned are those of level.finer."""
        return _Convolution.apply(x, self.weight, self.bias, level._up())


class Linear(_Layer):
    """A linear layer of owned rows."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True):
        super().__init__(in_channels, out_channels, 1, bias, ())

    def forward(self, x: Tensor, level: Level) -> Tensor:
        return _Linear.apply(x, self.weight, self.bias, level)


class BatchNorm(_nn.BatchNorm):
    """:class:`spops.nn.BatchNorm` with statistics over the rows of all ranks; names of parameters are the same. In f32."""

    def forward(self, x: Tensor, level: Level) -> Tensor:
        """x: owned rows of level."""
        if not self.training:
            return self._rows(x)
        self.num_batches_tracked += 1
        number = _made.batchnorm_activation_numbers[self.activation]
        return _BatchNorm.apply(x, self.weight, self.bias, self.running_mean, self.running_var, level, self.momentum, self.eps, number, self.activation_slope)
