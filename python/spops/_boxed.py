# SPDX-License-Identifier: Apache-2.0
"""Operators called by ctypes with arrays that are there already: what a program for XLA is planned with."""
from __future__ import annotations

import ctypes as _c
import threading
from dataclasses import dataclass

from . import _library
from ._rows import FLOAT, FLOATS, INTS, PLAN, Operator
from ._structs import Content, DLTensor, Value

HOST, CUDA = 1, 2  # DLPack's kinds of devices
_NONE, _INT, _FLOAT, _POINTER, _TENSOR = 0, 1, 3, 4, 7

_find = _library.function("spops_operator_find", _c.c_void_p, _c.c_char_p)
_call = _library.function("spops_call", _c.c_int, _c.c_void_p, _c.c_void_p, _c.POINTER(Value), _c.c_int32, _c.POINTER(Value))
destroy = _library.c.spops_call_destroy
# DLPack's code and bits
_codes = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "float64": (2, 64), "int8": (0, 8), "int32": (0, 32), "int64": (0, 64),
          "uint8": (1, 8), "bool": (6, 8), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8)}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """An array: its address, shape, dtype's name, kind and number of its device."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    device_type: int = HOST
    device: int = 0


def _tensor(m: Memory, keep: list) -> Value:
    shape = (_c.c_int64 * max(len(m.shape), 1))(*m.shape)
    code, bits = _codes[m.dtype]
    t = DLTensor(m.address, m.device_type, m.device, len(m.shape), code, bits, 1, shape, None, 0)
    keep += [shape, t]
    return Value(_TENSOR, 0, Content(p=_c.addressof(t)))


def _list(values, is_float: bool, keep: list) -> Value:
    if not values:
        return Value(_NONE, 0, Content(i=0))
    array = ((_c.c_double if is_float else _c.c_int64) * len(values))(*values)
    keep.append(array)
    return _tensor(Memory(_c.addressof(array), (len(values),), "float64" if is_float else "int64"), keep)


def make_plan(op: Operator, inputs: dict[str, Memory | int], ints: dict[str, tuple[int, ...]], attributes: dict, device: int = -1) -> int:
    """The handle of a plan of exact sizes, which waits: spops_call_destroy frees it.

    inputs: arrays, and blocks or handles of plans by name; ints: descriptions of those blocks; device: a
    CUDA device, for a plan that no input says the place of, or -1."""
    values, keep, present, bit = [], [], 0, 0
    for a in op.inputs:
        given = inputs.get(a.name)
        if a.optional:
            present |= (given is not None) << bit
            bit += 1
            if given is None:
                continue
        values.append(Value(_POINTER, 0, Content(p=given)) if isinstance(given, int) else _tensor(given, keep))
    values.append(Value(_NONE, 0, Content(i=0)))
    for a in op.inputs:
        if a.kind == PLAN:
            values.append(_list(ints.get(a.name, ()), False, keep))
    values.append(Value(_NONE, 0, Content(i=0)))
    for a in op.attributes:
        v = attributes[a.name]
        if a.kind in (INTS, FLOATS):
            values.append(_list(v, a.kind == FLOATS, keep))
        elif a.kind == FLOAT:
            values.append(Value(_FLOAT, 0, Content(f=v)))
        else:
            values.append(Value(_INT, 0, Content(i=v)))
    if op.num_optional:
        values.append(Value(_INT, 0, Content(i=present)))
    ret = Value()
    array = (Value * len(values))(*values)
    _library.c.spops_call_set_device(device)
    try:
        _library.fail(_call(None, _find(op.name.encode()), array, len(values), _c.byref(ret)))
    finally:
        _library.c.spops_call_set_device(-1)
    return ret.v.p


def fields_of(handle: int) -> tuple[int, ...]:
    """The fields of a plan, in the order of its kind."""
    n = _library.c.spops_plan_get_fields(handle, None, 0)
    fields = (_c.c_int64 * n)()
    _library.c.spops_plan_get_fields(handle, fields, n)
    return tuple(fields)


# ---- Sizes ------------------------------------------------------------------------------------------


_contexts: dict[tuple[int, int], _c.c_void_p] = {}  # for measuring, by device
_lock = threading.Lock()


def block_bytes(ints: tuple[int, ...], device_type: int, device: int = 0) -> int:
    """Bytes of the block of a described plan with all that it stands on."""
    with _lock:
        if (device_type, device) not in _contexts:
            _contexts[device_type, device] = _library.new_context({HOST: "cpu", CUDA: "cuda"}[device_type], device)
        return _library.measure(_contexts[device_type, device], ints)
