# SPDX-License-Identifier: Apache-2.0
"""Plans: relations with their work schedules, that operators take beside tensors."""
from __future__ import annotations

import ctypes
import math
import struct
import weakref

import numpy as np
import torch
import tvm_ffi
from torch.utils import _pytree

from . import _device, _library, _rows

_by_number = {k.number: k for k in _rows.kinds.values()}
HEAD = 2  # ints of a description before its fields: the kind and its version


class _Address(ctypes.c_int64 * 1):
    """A plan's address, in memory that a tensor can be; keeps what the plan stands on."""

    keeps: tuple = ()
    device = stream = None
    others: set | None = None  # streams that it is used on beside the one that it was made on

    def use_on(self, stream: int) -> None:
        """Work on this stream reads the plan: it follows what makes the plan, whose memory is not given to others before."""
        if stream != self.stream and (self.others is None or stream not in self.others):
            if self.others is None:
                self.others = set()
            self.others.add(stream)
            _device.follow(stream, self.stream, self.device)
        for plan in self.keeps:
            if plan._owner is not None:
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


# ---- What a plan was made from --------------------------------------------------------------------


def _version(x):
    return x._version if isinstance(x, torch.Tensor) and not x.is_inference() else None


def recipe(maker: str, arguments: tuple):
    """The function that made a plan, its arguments, and their versions: tensors may change later."""
    return maker, arguments, [_version(a) for a in arguments]


def _remake(maker: str, arguments: tuple):
    from . import _generate

    names = [n for n, _, _ in _generate.parameters(_rows.operators[maker])]
    return _generate.functions[maker](**dict(zip(names, arguments)))


# ---- Plans ----------------------------------------------------------------------------------------


def description_of(ints):
    """A description as the library takes it."""
    return tvm_ffi.Shape(tuple(int(i) for i in ints))


class Plan:
    """A plan of any kind.

    Made by functions of spops.functional, such as ``segments`` or ``kernel_map``, and taken by
    others. It is never changed after it was made, and can be used by any number of calls, on the
    device that it was made on. Its memory is freed when the last reference to it, or to a tensor
    that was computed from it and awaits its gradient, is gone.

    Fields of its kind are attributes: ``plan.num_segments``, ``map.max_out``; arrays of fields are
    lists. ``dir(plan)`` names them.

    It can be pickled and moved (:meth:`to`): it is then made again from what it was made from, which
    it keeps. torch's pytrees take it apart into ``token`` and ``ints``.

    Attributes
    ----------
    kind : str
        ``"segments"``, ``"kernel_map"``, ...
    ints : tuple of int
        Its description: number and version of its kind, then ``fields``.
    device : torch.device
        Where it lives.
    stream : int or None
        The CUDA stream that it was made on, in whose order its memory is given back; None on the CPU.
    token : torch.Tensor
        Stands for the plan in operators of ``torch.ops.spops``: i64 [1] in host memory, or of a plan
        with capacities (:class:`spops.Capacity`) the block that it lives in, i32 on its device.
    """

    __slots__ = ("kind", "handle", "ints", "token", "device", "stream", "description", "_owner", "_made", "__weakref__")

    def __init__(self, handle: int, keeps: tuple = (), is_part: bool = False, device=None, made=None):
        kind = _by_number[_library.c.spops_plan_get_kind(handle)]
        n = _library.c.spops_plan_get_fields(handle, None, 0)
        fields = (ctypes.c_int64 * n)()
        _library.c.spops_plan_get_fields(handle, fields, n)
        self.kind = kind.name
        self.device = device if device is not None else torch.device("cpu")
        self.ints = (kind.number, kind.version, *fields)
        self.handle = ctypes.c_void_p(handle)
        self.description = None
        holder = (_Address if is_part else _Handle)(handle)
        holder.keeps = keeps
        holder.device = self.device
        holder.stream = self.stream = keeps[0].stream if is_part else _device.stream_of(self.device)
        if self.stream is not None:
            owners[handle] = holder
        self._owner = holder
        self._made = made
        self.token = torch.from_numpy(np.frombuffer(holder, np.int64))

    @classmethod
    def of_block(cls, block: torch.Tensor, ints: tuple) -> Plan:
        """A plan with capacities: a block, i32, that calls fill and read, and its description."""
        self = object.__new__(cls)
        self.kind, self.ints = _by_number[ints[0]].name, tuple(ints)
        self.handle = self.token = block
        self.device, self.stream = block.device, _device.stream_of(block.device)
        self.description = description_of(ints)
        self._owner = self._made = None
        return self

    @classmethod
    def _from_leaves(cls, token, ints, context) -> Plan:
        """From pytrees; compilers give leaves of their own."""
        self = object.__new__(cls)
        self.kind, self.device, self.stream, self.description, self._owner, self._made = context
        self.token, self.ints = token, ints
        self.handle = None
        if type(token) is torch.Tensor and not torch.compiler.is_compiling():
            self.handle = ctypes.c_void_p(int(token)) if token.dtype is torch.int64 else token
        return self

    @property
    def fields(self) -> tuple:
        """All fields, in the order of the kind (``spops_plan_kinds``)."""
        return self.ints[HEAD:]

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        place = _rows.kinds[self.kind].fields.get(name)
        if place is None:
            raise AttributeError(f"a plan of kind {self.kind} has no field {name}")
        at, sizes, f64 = place
        values = self.ints[HEAD + at : HEAD + at + math.prod(sizes)]
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
        if self.description is not None:
            return self.token.numel() * self.token.element_size()
        return _library.c.spops_plan_bytes(self.handle)

    @property
    def scratch_bytes(self) -> int:
        """Scratch that calls with the plan take; of exact plans."""
        return _library.c.spops_plan_scratch_bytes(self.handle)

    def use(self) -> None:
        """Work on torch's current stream reads the plan, as ``Tensor.record_stream`` says of tensors.

        Calls do this by themselves."""
        if self.stream is not None and self._owner is None:
            self.token.record_stream(torch.cuda.current_stream(self.device))
        elif self.stream is not None:
            self._owner.use_on(_device.current_stream(self.device.index))

    def __repr__(self) -> str:
        if not all(isinstance(i, int) for i in self.ints):
            return f"<Plan {self.kind}>"
        shown = [f for f, (_, sizes, _) in _rows.kinds[self.kind].fields.items() if not sizes]
        return f"<Plan {self.kind}: " + ", ".join(f"{f} {getattr(self, f)}" for f in shown) + ">"

    # ---- Elsewhere ----

    def _arguments(self, move) -> tuple:
        """What it was made from, each moved; refused where that has changed since."""
        if self.description is not None:
            raise TypeError(f"a plan of kind {self.kind} with capacities is a tensor and ints: pickle or move these")
        if self._made is None:
            raise TypeError(f"a plan of kind {self.kind} from leaves of a pytree does not know what it was made from")
        maker, arguments, versions = self._made
        if [_version(a) for a in arguments] != versions:
            raise RuntimeError(f"a plan of kind {self.kind} is made again from what it was made from, and that has been written to since")
        return maker, tuple(move(a) for a in arguments)

    def to(self, device) -> Plan:
        """The plan on another device, made there from what it was made from; itself if it is there."""
        device = torch.empty(0, device=device).device
        if device == self.device:
            return self

        def move(x):
            if isinstance(x, torch.device):  # of a maker without tensors
                return device
            return x.to(device) if isinstance(x, (Plan, torch.Tensor)) else x

        maker, arguments = self._arguments(move)
        return _remake(maker, arguments)

    def __reduce__(self):
        if self.description is not None:
            return Plan.of_block, (self.token, self.ints)
        return _remake, self._arguments(lambda x: tuple(x) if isinstance(x, tvm_ffi.Shape) else x)

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo) -> Plan:
        return self


def _flatten(plan: Plan):
    context = plan.kind, plan.device, plan.stream, plan.description, plan._owner, plan._made
    return [plan.token, *plan.ints], context


def _flatten_with_keys(plan: Plan):
    leaves, context = _flatten(plan)
    keys = [_pytree.GetAttrKey("token"), *(_pytree.SequenceKey(i) for i in range(len(plan.ints)))]
    return list(zip(keys, leaves)), context


_pytree.register_pytree_node(
    Plan,
    _flatten,
    lambda leaves, context: Plan._from_leaves(leaves[0], tuple(leaves[1:]), context),
    flatten_with_keys_fn=_flatten_with_keys,
)
