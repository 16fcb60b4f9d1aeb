# SPDX-License-Identifier: Apache-2.0
"""Operators called by ctypes with arrays that are there already: what a program for XLA is planned with."""
from __future__ import annotations

import ctypes as _c
import threading
from dataclasses import dataclass

from . import _library
from ._rows import FLOAT, FLOATS, INTS, PLAN, Operator

HOST, CUDA = 1, 2  # DLPack's kinds of devices
_NONE, _INT, _FLOAT, _POINTER, _TENSOR = 0, 1, 3, 4, 7


class _Content(_c.Union):
    _fields_ = [("i", _c.c_int64), ("f", _c.c_double), ("p", _c.c_void_p)]


class _Value(_c.Structure):
    _fields_ = [("type", _c.c_int32), ("reserved", _c.c_uint32), ("v", _Content)]


class _Tensor(_c.Structure):
    _fields_ = [
        ("data", _c.c_void_p), ("device_type", _c.c_int32), ("device_id", _c.c_int32), ("num_dims", _c.c_int32),
        ("dtype_code", _c.c_uint8), ("dtype_bits", _c.c_uint8), ("dtype_lanes", _c.c_uint16),
        ("shape", _c.POINTER(_c.c_int64)), ("strides", _c.POINTER(_c.c_int64)), ("byte_offset", _c.c_uint64),
    ]  # fmt: skip



def function(name: str, result, *arguments):
    """A call of the library, with types of its own."""
    f = _library.c[name]
    f.restype, f.argtypes = result, arguments
    return f


_find = function("spops_operator_find", _c.c_void_p, _c.c_char_p)
_call = function("spops_call", _c.c_int, _c.c_void_p, _c.c_void_p, _c.POINTER(_Value), _c.c_int32, _c.POINTER(_Value))
_measure = function("spops_plan_measure", _c.c_int, _c.c_void_p, _c.POINTER(_c.c_int64), _c.c_int32, _c.POINTER(_c.c_size_t), _c.POINTER(_c.c_size_t))
_get_fields = function("spops_plan_get_fields", _c.c_int32, _c.c_void_p, _c.POINTER(_c.c_int64), _c.c_int32)
destroy = function("spops_call_destroy", None, _c.c_void_p)
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


def _tensor(m: Memory, keep: list) -> _Value:
    shape = (_c.c_int64 * max(len(m.shape), 1))(*m.shape)
    code, bits = _codes[m.dtype]
    t = _Tensor(m.address, m.device_type, m.device, len(m.shape), code, bits, 1, shape, None, 0)
    keep += [shape, t]
    return _Value(_TENSOR, 0, _Content(p=_c.addressof(t)))


def _list(values, is_float: bool, keep: list) -> _Value:
    if not values:
        return _Value(_NONE, 0, _Content(i=0))
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
        values.append(_Value(_POINTER, 0, _Content(p=given)) if isinstance(given, int) else _tensor(given, keep))
    values.append(_Value(_NONE, 0, _Content(i=0)))
    for a in op.inputs:
        if a.kind == PLAN:
            values.append(_list(ints.get(a.name, ()), False, keep))
    values.append(_Value(_NONE, 0, _Content(i=0)))
    for a in op.attributes:
        v = attributes[a.name]
        if a.kind in (INTS, FLOATS):
            values.append(_list(v, a.kind == FLOATS, keep))
        elif a.kind == FLOAT:
            values.append(_Value(_FLOAT, 0, _Content(f=v)))
        else:
            values.append(_Value(_INT, 0, _Content(i=v)))
    if op.num_optional:
        values.append(_Value(_INT, 0, _Content(i=present)))
    ret = _Value()
    array = (_Value * len(values))(*values)
    _library.c.spops_call_set_device(device)
    try:
        _library.fail(_call(None, _find(op.name.encode()), array, len(values), _c.byref(ret)))
    finally:
        _library.c.spops_call_set_device(-1)
    return ret.v.p


def fields_of(handle: int) -> tuple[int, ...]:
    """The fields of a plan, in the order of its kind."""
    n = _get_fields(handle, None, 0)
    fields = (_c.c_int64 * n)()
    _get_fields(handle, fields, n)
    return tuple(fields)


# ---- Sizes ------------------------------------------------------------------------------------------


class _Options(_c.Structure):
    """The first fields of spops_context_options; a shorter struct has defaults for the others."""

    _fields_ = [("struct_size", _c.c_size_t), ("backend", _c.c_int), ("device", _c.c_int32)]


_create = function("spops_context_create", _c.c_int, _c.POINTER(_Options), _c.POINTER(_c.c_void_p))
_contexts: dict[tuple[int, int], _c.c_void_p] = {}  # for measuring, by device
_lock = threading.Lock()


def block_bytes(ints: tuple[int, ...], device_type: int, device: int = 0) -> int:
    """Bytes of the block of a described plan with all that it stands on."""
    with _lock:
        ctx = _contexts.get((device_type, device))
        if ctx is None:
            ctx = _c.c_void_p()
            options = _Options(_c.sizeof(_Options), device_type, device)  # backends have DLPack's numbers
            _library.fail(_create(_c.byref(options), _c.byref(ctx)))
            _contexts[device_type, device] = ctx
        size = _c.c_size_t()
        array = (_c.c_int64 * len(ints))(*ints)
        _library.fail(_measure(ctx, array, len(ints), _c.byref(size), None), ctx)
        return size.value
