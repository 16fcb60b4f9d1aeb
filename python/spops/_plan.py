# SPDX-License-Identifier: Apache-2.0
"""Plans: relations with their work schedules, that operators take beside tensors."""
from __future__ import annotations

import ctypes
import math
import struct
import weakref

import numpy as np
import torch

from . import _device, _library, _rows

_by_number = {k.number: k for k in _rows.kinds.values()}


class _Address(ctypes.c_int64 * 1):
    """A plan's address, in memory that a tensor can be; keeps what the plan stands on."""

    keeps: tuple = ()
    device = stream = None
    others: set | None = None  # streams that it is used on beside the one that it was made on

    def use_on(self, stream: int) -> None:
        """Work on this stream reads the plan: its memory is not given to others before."""
        if stream != self.stream:
            if self.others is None:
                self.others = set()
            self.others.add(stream)
        for plan in self.keeps:
            plan._owner.use_on(stream)


class _Handle(_Address):
    """Destroys the plan when nobody has it any more."""

    def __del__(self, destroy=_library.c.spops_call_destroy, on=_device):
        if not self[0] or on.closing:
            return
        if self.others:
            on.wait_for(self.others, self.device, self.stream)
        destroy(self[0])


owners: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # of plans on CUDA, by address


class Plan:
    """A plan of any kind.

    Made by functions of spops.functional, such as ``segments`` or ``kernel_map``, and taken by
    others. It is never changed after it was made, and can be used by any number of calls, on the
    device that it was made on. Its memory is freed when the last reference to it, or to a tensor
    that was computed from it and awaits its gradient, is gone.

    Fields of its kind are attributes: ``plan.num_segments``, ``map.max_out``; arrays of fields are
    lists. ``dir(plan)`` names them.

    Attributes
    ----------
    kind : str
        ``"segments"``, ``"kernel_map"``, ...
    fields : tuple of int
        All fields, in the order of the kind (docs of ``spops_plan_kinds``).
    device : torch.device
        Where it lives.
    stream : int or None
        The CUDA stream that it was made on, in whose order its memory is given back; None on the CPU.
    token : torch.Tensor
        i64 [1] in host memory: stands for the plan in operators of ``torch.ops.spops``.
    """

    __slots__ = ("kind", "handle", "fields", "token", "device", "stream", "_owner", "__weakref__")

    def __init__(self, handle: int, keeps: tuple = (), is_part: bool = False, device=None):
        kind = _by_number[_library.c.spops_plan_get_kind(handle)]
        n = _library.c.spops_plan_get_fields(handle, None, 0)
        fields = (ctypes.c_int64 * n)()
        _library.c.spops_plan_get_fields(handle, fields, n)
        self.kind = kind.name
        self.device = device if device is not None else torch.device("cpu")
        self.fields = tuple(fields)
        self.handle = ctypes.c_void_p(handle)
        holder = (_Address if is_part else _Handle)(handle)
        holder.keeps = keeps
        holder.device = self.device
        holder.stream = self.stream = keeps[0].stream if is_part else _device.stream_of(self.device)
        if self.stream is not None:
            owners[handle] = holder
        self._owner = holder
        self.token = torch.from_numpy(np.frombuffer(holder, np.int64))

    def __getattr__(self, name: str):
        place = _rows.kinds[self.kind].fields.get(name)
        if place is None:
            raise AttributeError(f"a plan of kind {self.kind} has no field {name}")
        at, sizes, f64 = place
        values = self.fields[at : at + math.prod(sizes)]
        if f64:
            values = tuple(struct.unpack("d", struct.pack("q", v))[0] for v in values)
        if not sizes:
            return values[0]
        return list(values)

    def __dir__(self):
        return [*super().__dir__(), *_rows.kinds[self.kind].fields]

    @property
    def bytes(self) -> int:
        """Bytes of the plan's arrays where it lives."""
        return _library.c.spops_plan_bytes(self.handle)

    @property
    def scratch_bytes(self) -> int:
        """Scratch that calls with the plan take."""
        return _library.c.spops_plan_scratch_bytes(self.handle)

    def use(self) -> None:
        """Work on torch's current stream reads the plan, as ``Tensor.record_stream`` says of tensors.

        Calls do this by themselves."""
        if self.stream is not None:
            self._owner.use_on(_device.current_stream(self.device.index))

    def __repr__(self) -> str:
        shown = [f for f, (_, sizes, _) in _rows.kinds[self.kind].fields.items() if not sizes]
        return f"<Plan {self.kind}: " + ", ".join(f"{f} {getattr(self, f)}" for f in shown) + ">"

    def __reduce__(self):
        raise TypeError(f"a plan of kind {self.kind} is a handle of this process: make it again from what it was made of")
