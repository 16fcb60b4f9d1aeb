# SPDX-License-Identifier: Apache-2.0
"""Plans with capacities: blocks of torch's memory that calls fill on the stream, without waiting.

A description is put together from that of an exact plan of one row, which says what the library
chooses on this device, and from the capacities.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _layers, _library, _made, _rows
from . import functional as F
from ._device import call_on
from ._plan import HEAD, Plan, description_of
from ._structs import KernelShape
from ._tensor import Kernel, Relation, Sites

_c = ctypes
_CAPACITY_EXCEEDED = 8


@dataclass(frozen=True)
class Capacity:
    """The most that the plans of a network hold.

    Parameters
    ----------
    rows : int
        Rows of the input.
    pairs : int, optional
        Pairs of a kernel map; None: rows of the output times taps, which is never too few.
    levels : dict, optional
        Rows at a stride, where they are not those of the input: ``{2: 100_000, 4: 30_000}``; a stride is
        a number, or one for each axis.
    """

    rows: int
    pairs: int | None = None
    levels: dict | None = None

    def at(self, stride: tuple[int, ...]) -> int:
        """Rows of a set at this stride."""
        levels = self.levels or {}
        same = stride[0] if len(set(stride)) == 1 else None
        return levels.get(stride, levels.get(same, self.rows))


# ---- Descriptions and blocks ----------------------------------------------------------------------

_p = _c.c_void_p
_attach = _library.function("spops_plan_attach", _c.c_int, _p, _c.POINTER(_c.c_int64), _c.c_int32, _p, _c.c_size_t, _p, _c.c_int32, _c.POINTER(_p))
_plan_destroy = _library.function("spops_plan_destroy", None, _p)
_num_candidates = _library.function("spops_kernel_shape_num_candidates", _c.c_int64, _c.POINTER(KernelShape), _c.c_int)

_contexts: dict = {}  # by device: they measure and look
_sizes: dict = {}  # bytes, by device and description
_exact: dict = {}  # descriptions of exact plans of one row


def _context(device: torch.device):
    if device not in _contexts:
        _contexts[device] = _library.new_context(device.type, device.index or 0, num_threads=1)
    return _contexts[device]


def _bytes(ints: tuple, device: torch.device) -> int:
    key = ints, device
    if key not in _sizes:
        _sizes[key] = _library.measure(_context(device), ints)
    return _sizes[key]


def fill(maker: str, ints: tuple, device: torch.device, *values, **attributes) -> Plan:
    """The plan of a description in a new block, filled by a row of the list from its inputs."""
    op = _rows.operators[maker]
    block = torch.empty((_bytes(ints, device) + 3) // 4, dtype=torch.int32, device=device)
    plan = Plan.of_block(block, ints)
    given = [v.handle if isinstance(v, Plan) else v for v in values]
    given += [None] * (len(op.inputs) - len(given)) + [block]
    plans = [v for v, a in zip([*values, *[None] * len(op.inputs)], op.inputs) if a.kind == _rows.PLAN]
    given += [None if p is None else p.description for p in plans] + [plan.description]
    given += [_made._ints(attributes[a.name]) if a.name in attributes else a.default for a in op.attributes]
    if op.num_optional:
        given.append(None)
    call_on(device, getattr(_made.module, maker), *given)
    return plan


def _with(ints: tuple, kind: str, **fields) -> tuple:
    """A description with other numbers in some of its fields."""
    ints = list(ints)
    for name, value in fields.items():
        ints[HEAD + _rows.kinds[kind].fields[name][0]] = value
    return tuple(ints)


def _one_row(dims: int, device: torch.device) -> Plan:
    return F.coords(torch.zeros((1, 1 + dims), dtype=torch.int32, device=device))


def coords_ints(dims: int, rows: int, items: int, lower, upper) -> tuple:
    kind = _rows.kinds["coords"]
    pad = (0,) * (4 - dims)
    return (kind.number, kind.version, dims, rows, max(items, rows), 0, 0, *lower, *pad, *upper, *pad)


def map_ints(kernel: Kernel, kind: str, rows_in: int, rows_out: int, pairs: int | None, device) -> tuple:
    key = "map", kernel.key, kind, device
    if key not in _exact:
        one = _one_row(kernel.dims, device)
        _exact[key] = F.kernel_map(one, None if kind == "submanifold" else one, kind=kind, **kernel.arguments()).ints
    most = rows_out * kernel.num_taps
    return _with(_exact[key], "kernel_map", max_in=rows_in, max_out=rows_out, max_pairs=most if pairs is None else min(pairs, most))


def conv_ints(of_map: tuple, kernel: Kernel, kind: str, width: int, device) -> tuple:
    key = "conv", kernel.key, kind, width, device
    if key not in _exact:
        one = _one_row(kernel.dims, device)
        map = F.kernel_map(one, None if kind == "submanifold" else one, kind=kind, **kernel.arguments())
        _exact[key] = F.sparseconv_plan(map, backward=True, max_in_channels=width, max_out_channels=width).ints
    size = {n: of_map[HEAD + _rows.kinds["kernel_map"].fields[n][0]] for n in ("max_in", "max_out", "max_pairs")}
    sizes = dict(num_out=size["max_out"], num_in=size["max_in"], max_pairs=size["max_pairs"])
    own = _with(_exact[key], "sparseconv", crop_independent=int(_layers.plans_are_crop_independent()), **sizes)
    return own + of_map


def _candidates(kernel: Kernel, transposed: bool) -> int:
    """Most outputs that one row can have."""
    shape = KernelShape(kernel.dims)
    for name in ("size", "stride", "padding", "dilation"):
        values = getattr(kernel, name)
        for a in range(4):
            getattr(shape, name)[a] = values[a] if a < kernel.dims else int(name != "padding")
    return _num_candidates(_c.byref(shape), transposed)


def pool_ints(parent: tuple, gradients: str, width: int, **fields) -> tuple:
    kind = _rows.kinds["pool"]
    values = dict.fromkeys(kind.fields, 0) | fields
    values |= dict(max_cols=width, gradients=("none", "linear", "all").index(gradients))
    own = (kind.number, kind.version, *values.values())
    return own + (parent + (0, 0) if parent[0] == _rows.kinds["kernel_map"].number else (0, *parent, 0))


# ---- Sites ----------------------------------------------------------------------------------------


class _Filled(Relation):
    """A map with capacities."""

    def __init__(self, map: Plan, sites, kernel: Kernel, kind: str):
        super().__init__(map, sites)
        self.kernel, self.kind = kernel, kind

    def conv(self, channels: int, pairs: bool = True) -> Plan:
        key = "conv", max(256, channels), _layers.plans_are_crop_independent()
        if key not in self._plans:
            device = self.map.device
            self._plans[key] = fill("sparseconv_plan", conv_ints(self.map.ints, self.kernel, self.kind, key[1], device), device, self.map)
        return self._plans[key]

    def pool(self, reduce: str, channels: int) -> Plan:
        key = "linear" if reduce in ("sum", "mean") else "all", max(256, channels)
        if key not in self._plans:
            m = self.map
            into = _candidates(self.kernel, False) if self.kind == "convolution" else m.num_taps
            ints = pool_ints(m.ints, *key, source=0, num_segments=m.max_out, max_terms=m.max_pairs, num_rows=m.max_in,
                             most_pooled=m.num_taps, most_into=into)  # fmt: skip
            self._plans[key] = fill("pool_plan", ints, m.device, m)
        return self._plans[key]

    def inverse(self, sites) -> Relation:
        """The same pairs from the other side: those of a transposed convolution onto the inputs."""
        if self._inverse is None:
            self._inverse = self.sites.joined(sites, self.kernel, "transposed", None)
        return self._inverse


class FilledSites(Sites):
    """Places with a capacity: ``num_rows``, an i32 where they are, says how many are in use."""

    def __init__(self, coords: Tensor, num_rows: Tensor, shape, batch_size: int, stride, capacity: Capacity, set=None, plans=None):
        super().__init__(coords, shape, batch_size, stride, set)
        self.num_rows, self.capacity = num_rows, capacity
        self.plans = [] if plans is None else plans  # that may overflow, with what they are

    def _make(self, what: str, maker: str, ints: tuple, *values, **attributes) -> Plan:
        plan = fill(maker, ints, self.coords.device, *values, **attributes)
        self.plans.append((what, plan))
        return plan

    def _corners(self, shape):
        return (0,) * (1 + self.dims), (self.batch_size - 1, *(n - 1 for n in shape))

    @property
    def set(self) -> Plan:
        if self._set is None:
            rows = self.coords.shape[0]
            ints = coords_ints(self.dims, rows, rows, *self._corners(self.shape))
            self._set = self._make("rows of the input", "coords", ints, self.coords, self.num_rows)
        return self._set

    def joined(self, to: FilledSites, kernel: Kernel, kind: str, sites) -> Relation:
        ints = map_ints(kernel, kind, self.coords.shape[0], to.coords.shape[0], self.capacity.pairs, self.coords.device)
        out = () if kind == "submanifold" else (to.set,)
        what = f"pairs of the {kind} map of kernel {kernel.size} at stride {self.stride}"
        return _Filled(self._make(what, "kernel_map", ints, self.set, *out), sites, kernel, kind)

    def within(self, kernel: Kernel) -> Relation:
        key = "within", kernel.size, kernel.dilation
        if key not in self._relations:
            inner = Kernel(self.dims, kernel.size, dilation=kernel.dilation)
            self._relations[key] = self.joined(self, inner, "submanifold", None)
        return self._relations[key]

    def onto(self, kernel: Kernel, transposed: bool = False, output_padding=None) -> Relation:
        key = "up" if transposed else "down", *kernel.key, output_padding
        if key not in self._relations:
            shape = kernel.out_shape(self.shape, transposed, output_padding)
            if min(shape) < 1:
                raise ValueError(f"spatial shape {tuple(self.shape)} is smaller than the kernel: outputs would be {shape}")
            stride = self.stride_onto(kernel, transposed)
            rows = self.capacity.at(stride)
            items = self.coords.shape[0] * _candidates(kernel, transposed)
            set = self._make(f"rows at stride {stride}", "coords_up" if transposed else "coords_down",
                             coords_ints(self.dims, rows, items, *self._corners(shape)), self.set, **kernel.arguments())  # fmt: skip
            coords, num_rows = F.coords_rows(set)
            sites = FilledSites(coords, num_rows, shape, self.batch_size, stride, self.capacity, set, self.plans)
            self._relations[key] = self.joined(sites, kernel, "transposed" if transposed else "convolution", sites)
        return self._relations[key]

    def global_pool(self, reduce: str, channels: int) -> Plan:
        key = "linear" if reduce in ("sum", "mean") else "all", max(256, channels)
        if key not in self._pools:
            rows = self.coords.shape[0]
            ints = pool_ints(self.set.ints, *key, source=1, num_segments=self.batch_size, max_terms=rows, num_rows=rows, most_into=1)
            self._pools[key] = fill("pool_global_plan", ints, self.coords.device, self.set)
        return self._pools[key]


def overflow(plans) -> list[str]:
    """What did not fit, a sentence for each plan; waits for the device."""
    found = []
    for what, plan in plans:
        block, ctx, handle = plan.token, _context(plan.device), _c.c_void_p()
        if plan.device.type == "cuda":
            torch.cuda.synchronize(plan.device)
        ints = (_c.c_int64 * len(plan.ints))(*plan.ints)
        _library.fail(_attach(ctx, ints, len(ints), block.data_ptr(), 4 * block.numel(), None, 0, _c.byref(handle)), ctx)
        info = (_c.c_size_t * 1)(8)  # its size: nothing more is wanted
        look = _library.function(f"spops_{plan.kind}_get_info_sync", _c.c_int, _p, _p, _p)
        status = look(ctx, handle, info)
        message = _library.c.spops_last_error(ctx).decode()
        _plan_destroy(handle)
        if status == _CAPACITY_EXCEEDED:
            found.append(f"{what}: {message}")
        else:
            _library.fail(status, ctx)
    return found
