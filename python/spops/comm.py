# SPDX-License-Identifier: Apache-2.0
"""Communicators for PyTorch (spops/comm.h): ranks that exchange rows, sum parts with the bits of one rank, and agree.

    comm = Comm.of_process_group(device=torch.device("cuda", local_rank))    a process a GPU, NCCL
    comm = Comm.of_threads(group, rank)                                      threads of one process

All ranks make the same calls in the same order.
"""
from __future__ import annotations

import ctypes as _c
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _device, _library
from ._library import CommBroken
from ._library import fail as _fail
from ._library import function as _function
from ._structs import CommLayout, CommOptions, Matrix

ID_BYTES, MAX_VALUE_BYTES = 128, 4096
_dtypes = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float8_e4m3fn: 3, torch.float8_e5m2: 4, torch.int8: 6,
           torch.int32: 7, torch.int64: 8, torch.float64: 9}  # fmt: skip
_p, _i32, _i64s = _c.c_void_p, _c.c_int32, _c.POINTER(_c.c_int64)
_context_reserve = _function("spops_context_reserve", _c.c_int, _p, _c.c_size_t)
_group_create = _function("spops_comm_group_create", _c.c_int, _i32, _c.POINTER(_p))
_group_destroy = _function("spops_comm_group_destroy", None, _p)
_create_threads = _function("spops_comm_create_threads", _c.c_int, _p, _p, _i32, _c.POINTER(CommOptions), _c.POINTER(_p))
_create_nccl_id = _function("spops_comm_create_nccl_id", _c.c_int, _p, _c.c_char_p, _i32, _i32, _c.POINTER(CommOptions), _c.POINTER(_p))
_create_nccl = _function("spops_comm_create_nccl", _c.c_int, _p, _p, _c.POINTER(CommOptions), _c.POINTER(_p))
_get_nccl_id = _function("spops_comm_get_nccl_id", _c.c_int, _p, _c.c_char_p)
_destroy = _function("spops_comm_destroy", None, _p)
_rank = _function("spops_comm_rank", _i32, _p)
_num_ranks = _function("spops_comm_num_ranks", _i32, _p)
_gather = _function("spops_comm_gather_sync", _c.c_int, _p, _p, _c.c_char_p, _c.c_size_t, _c.c_char_p)
_barrier = _function("spops_comm_barrier_sync", _c.c_int, _p, _p)
_wait = _function("spops_comm_wait_sync", _c.c_int, _p, _p)
_exchange = _function("spops_comm_exchange_execute", _c.c_int, _p, _p, _c.POINTER(CommLayout), Matrix, Matrix)
_exchange_begin = _function("spops_comm_exchange_begin", _c.c_int, _p, _p, _c.POINTER(CommLayout), Matrix, Matrix)
_exchange_end = _function("spops_comm_exchange_end", _c.c_int, _p, _p)
_broadcast = _function("spops_comm_broadcast_execute", _c.c_int, _p, _p, _i32, Matrix)
_sum = _function("spops_comm_sum_execute", _c.c_int, _p, _p, _i64s, Matrix, Matrix)
_sum_scratch_bytes = _function("spops_comm_sum_scratch_bytes", _c.c_size_t, _p, _c.c_int64, _c.c_int64, _c.c_int)


def _numbers(values: Sequence[int], n: int, what: str):
    if len(values) != n:
        raise ValueError(f"Comm: {what} has {len(values)} numbers, expected {n}")
    return (_c.c_int64 * n)(*(int(v) for v in values))


class Group:
    """Where ranks meet that are threads of this process."""

    def __init__(self, num_ranks: int):
        self._handle = _p()
        _fail(_group_create(num_ranks, _c.byref(self._handle)))

    def __del__(self):
        if getattr(self, "_handle", None):
            _group_destroy(self._handle)
            self._handle = None


class Comm:
    """One rank's end of a communicator.

    On CUDA rows move in the order of torch's current stream; with NCCL calls are enqueued, and can be captured. A
    call that waits for other ranks waits at most ``timeout_ms`` (60 s by default), and raises :class:`CommBroken`.

    Attributes
    ----------
    rank, num_ranks : int
    device : torch.device
    """

    _owner = None  # it is no plan, among what a plan keeps

    def __init__(self, device, create):
        """Use of_threads, of_process_group or of_nccl_id. create(ctx, out) makes the communicator."""
        self._comm, self._contexts, self._moving = None, {}, None
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        made, self._home = _p(), self._context()
        _fail(create(self._home, _c.byref(made)), self._home)
        self._comm = made
        self.rank, self.num_ranks = _rank(made), _num_ranks(made)

    @classmethod
    def of_threads(cls, group: Group, rank: int, device="cpu", timeout_ms: int = 0) -> Comm:
        """A rank of a group, made by the thread that is the rank."""
        return cls(device, lambda ctx, out: _create_threads(ctx, group._handle, rank, _c.byref(CommOptions(timeout_ms)), out))

    @classmethod
    def of_nccl_id(cls, nccl_id: bytes, num_ranks: int, rank: int, device="cuda", timeout_ms: int = 0) -> Comm:
        """A rank of an NCCL communicator of its own; nccl_id is that of new_nccl_id, the same on all ranks."""
        if len(nccl_id) != ID_BYTES:
            raise ValueError(f"Comm: nccl_id has {len(nccl_id)} bytes, expected {ID_BYTES}")
        return cls(device, lambda ctx, out: _create_nccl_id(ctx, nccl_id, num_ranks, rank, _c.byref(CommOptions(timeout_ms)), out))

    @classmethod
    def of_nccl(cls, nccl_comm: int, device="cuda", timeout_ms: int = 0) -> Comm:
        """A rank of an ncclComm_t that is there, by its address. It must outlive this object, and is not destroyed."""
        return cls(device, lambda ctx, out: _create_nccl(ctx, nccl_comm, _c.byref(CommOptions(timeout_ms)), out))

    @classmethod
    def of_process_group(cls, group=None, device="cuda", timeout_ms: int = 0) -> Comm:
        """The ranks of a group of torch.distributed (None: all), each with a GPU: an NCCL communicator of its own,
        whose id rank 0 hands to the others through the group."""
        import torch.distributed as dist

        if torch.device(device).type != "cuda":
            raise NotImplementedError("Comm: ranks in several processes need CUDA; on the CPU ranks are threads (of_threads)")
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        shared = [new_nccl_id(device) if rank == 0 else None]
        source = dist.get_global_rank(group, 0) if group is not None else 0
        dist.broadcast_object_list(shared, src=source, group=group)
        return cls.of_nccl_id(shared[0], size, rank, device, timeout_ms)

    def close(self) -> None:
        """Give the rank's end back; ranks that wait for it get an error. Plans on it refuse from then on."""
        if getattr(self, "_comm", None):
            _destroy(self._comm)
            self._comm = None
        for ctx in getattr(self, "_contexts", {}).values():
            _library.c.spops_context_destroy(ctx)
        self._contexts = {}

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self):
        if not _device.closing:
            self.close()

    # ---- Rows ----

    def exchange(self, send: Tensor, recv: Tensor, send_counts, send_offsets, recv_counts, recv_offsets) -> None:
        """recv[recv_offsets[r] + i] = rank r's send[its send_offsets[this rank] + i]; counts and offsets are in rows, a
        number for each rank."""
        self._start(_exchange, send, recv, send_counts, send_offsets, recv_counts, recv_offsets)

    def begin_exchange(self, send: Tensor, recv: Tensor, send_counts, send_offsets, recv_counts, recv_offsets) -> None:
        """The same, while other work goes on until end_exchange."""
        ctx = self._start(_exchange_begin, send, recv, send_counts, send_offsets, recv_counts, recv_offsets)
        self._moving = ctx, send, recv

    def end_exchange(self) -> None:
        ctx = self._context()
        try:
            _fail(_exchange_end(ctx, self._open()), ctx)
        finally:  # other ranks have read what was sent
            self._moving = None

    def broadcast(self, rows: Tensor, root: int = 0) -> None:
        """rows of root become those of all ranks."""
        ctx = self._context()
        _fail(_broadcast(ctx, self._open(), root, self._matrix(rows, "rows")), ctx)

    def sum(self, parts: Tensor, part_offsets: Sequence[int]) -> Tensor:
        """((part 0 + part 1) + part 2) + ... over the parts of all ranks, with the same bits for any number of ranks.

        parts : [own parts, cols], f32, on the CPU also f64; rank r has parts part_offsets[r] to part_offsets[r + 1] - 1
        """
        ctx, m = self._context(), self._matrix(parts, "parts")
        offsets = _numbers(part_offsets, self.num_ranks + 1, "part_offsets")
        out = parts.new_empty(parts.shape[1])
        _fail(_context_reserve(ctx, _sum_scratch_bytes(self._open(), offsets[self.num_ranks], m.cols, m.dtype)), ctx)
        _fail(_sum(ctx, self._open(), offsets, m, self._matrix(out.view(1, -1), "out")), ctx)
        return out

    # ---- Host values ----

    def gather(self, value: bytes) -> list[bytes]:
        """A value of each rank, of as many bytes on all of them, at most MAX_VALUE_BYTES."""
        ctx = self._context()
        values = _c.create_string_buffer(max(len(value) * self.num_ranks, 1))
        _fail(_gather(ctx, self._open(), value, len(value), values), ctx)
        return [values.raw[r * len(value) : (r + 1) * len(value)] for r in range(self.num_ranks)]

    def agree(self, error: Exception | None = None) -> None:
        """Make an exception of one rank one of all: RuntimeError with the text of the lowest rank that has one."""
        text = b"" if error is None else f"{type(error).__name__}: {error}".encode()[:500]
        for r, found in enumerate(self.gather(text.ljust(512, b"\0"))):
            said = found.rstrip(b"\0").decode(errors="replace")
            if said:
                raise RuntimeError(f"rank {r}: {said}") from (error if r == self.rank else None)

    def barrier(self) -> None:
        ctx = self._context()
        _fail(_barrier(ctx, self._open()), ctx)

    def wait(self) -> None:
        """Until torch's current stream has run, at most timeout_ms."""
        ctx = self._context()
        _fail(_wait(ctx, self._open()), ctx)

    # ---- Inside ----

    def _open(self):
        if self._comm is None:
            raise ValueError("Comm: it is closed")
        return self._comm

    def _context(self):
        """The context of torch's current stream."""
        stream = _device.stream_of(self.device)
        if stream not in self._contexts:
            how = dict(stream=stream, allocator=_device.allocator) if self.device.type == "cuda" else {}
            self._contexts[stream] = _library.new_context(self.device.type, self.device.index or 0, **how)
        return self._contexts[stream]

    def _matrix(self, t: Tensor, name: str) -> Matrix:
        if t.dim() != 2 or t.device != self.device or t.dtype not in _dtypes or not t.is_contiguous():
            raise ValueError(f"Comm: {name} is {list(t.shape)} of {t.dtype} on {t.device}, expected rows without gaps on {self.device}")
        return Matrix(t.data_ptr(), t.shape[0], t.shape[1], t.shape[1], _dtypes[t.dtype])

    def _start(self, call, send, recv, *lists):
        ctx, n = self._context(), self.num_ranks
        arrays = [_numbers(values, n, name) for values, (name, _) in zip(lists, CommLayout._fields_)]
        layout = CommLayout(*(_c.cast(a, _i64s) for a in arrays))
        _fail(call(ctx, self._open(), _c.byref(layout), self._matrix(send, "send"), self._matrix(recv, "recv")), ctx)
        return ctx


def new_nccl_id(device="cuda") -> bytes:
    """An id for of_nccl_id: one rank makes it and hands it to the others."""
    found = torch.device(device)
    index = found.index if found.index is not None else torch.cuda.current_device() if found.type == "cuda" else 0
    ctx, made = _library.new_context(found.type, index), _c.create_string_buffer(ID_BYTES)
    try:
        _fail(_get_nccl_id(ctx, made), ctx)
    finally:
        _library.c.spops_context_destroy(ctx)
    return made.raw
