# SPDX-License-Identifier: Apache-2.0
"""The shared library: where it is, what it says of itself, and its calls that take no tensors.

Operators are called through tvm-ffi (spops/call.h); ctypes reads the list of them and serves what
is not called often.
"""
from __future__ import annotations

import ctypes
import os
from importlib.metadata import entry_points
from pathlib import Path

_c = ctypes


class _Argument(_c.Structure):
    _fields_ = [
        ("struct_size", _c.c_size_t),
        ("name", _c.c_char_p),
        ("kind", _c.c_int),
        ("is_optional", _c.c_int32),
        ("needs", _c.c_char_p),
        ("type", _c.c_char_p),
        ("num_dims", _c.c_int32),
        ("dims", _c.c_char_p * 3),
        ("is_dense", _c.c_int32),
        ("may_be", _c.c_char_p),
        ("is_updated", _c.c_int32),
        ("first", _c.c_char_p),
        ("last", _c.c_char_p),
        ("values", _c.c_char_p),
        ("int_default", _c.c_int64),
        ("float_default", _c.c_double),
        ("count", _c.c_int32),
    ]


class _Operator(_c.Structure):
    _fields_ = [
        ("struct_size", _c.c_size_t),
        ("name", _c.c_char_p),
        ("function", _c.c_char_p),
        ("types", _c.c_char_p),
        ("inputs", _c.c_char_p),
        ("outputs", _c.c_char_p),
        ("attributes", _c.c_char_p),
        ("gradient", _c.c_char_p),
        ("scratch", _c.c_char_p),
        ("doc", _c.c_char_p),
        ("index", _c.c_int32),
        ("num_inputs", _c.c_int32),
        ("num_outputs", _c.c_int32),
        ("num_attributes", _c.c_int32),
        ("num_optional", _c.c_int32),
        ("arguments", _c.POINTER(_c.POINTER(_Argument))),
        ("entry", _c.c_void_p),
        ("needs_handles", _c.c_int32),
    ]


class _Kind(_c.Structure):
    _fields_ = [
        ("struct_size", _c.c_size_t),
        ("kind", _c.c_int),
        ("version", _c.c_int32),
        ("name", _c.c_char_p),
        ("fields", _c.c_char_p),
        ("parents", _c.c_char_p),
        ("state", _c.c_char_p),
    ]


class CommBroken(RuntimeError):
    """A rank stopped or did not come; every later call on the communicator says the same."""


def _find() -> str:
    named = os.environ.get("SPOPS_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise ImportError(f"spops: SPOPS_LIBRARY names {named}, and there is no such file")
        return named
    for entry in entry_points(group="spops.library"):  # spops-cu13 and its like: with CUDA
        return str(entry.load())
    path = Path(__file__).parent / "lib" / "libspops.so"
    if path.is_file():
        return str(path)
    raise ImportError(
        "spops: libspops.so is not in the package; install the wheel, or name the library in SPOPS_LIBRARY"
    )


path = _find()
c = _c.CDLL(path)

c.spops_operators.restype = _c.POINTER(_c.POINTER(_Operator))
c.spops_operators.argtypes = [_c.POINTER(_c.c_int32)]
c.spops_plan_kinds.restype = _c.POINTER(_Kind)
c.spops_plan_kinds.argtypes = [_c.POINTER(_c.c_int32)]
c.spops_plan_get_kind.restype = _c.c_int
c.spops_plan_get_kind.argtypes = [_c.c_void_p]
c.spops_plan_get_fields.restype = _c.c_int32
c.spops_plan_get_fields.argtypes = [_c.c_void_p, _c.POINTER(_c.c_int64), _c.c_int32]
c.spops_plan_bytes.restype = _c.c_size_t
c.spops_plan_bytes.argtypes = [_c.c_void_p]
c.spops_plan_scratch_bytes.restype = _c.c_size_t
c.spops_plan_scratch_bytes.argtypes = [_c.c_void_p]
c.spops_call_destroy.restype = None
c.spops_call_destroy.argtypes = [_c.c_void_p]
c.spops_call_release.restype = None
c.spops_call_release.argtypes = []
c.spops_call_set_stream.restype = None
c.spops_call_set_stream.argtypes = [_c.c_int32, _c.c_void_p]
c.spops_call_set_device.restype = None
c.spops_call_set_device.argtypes = [_c.c_int32]
c.spops_call_set_allocator.restype = None
c.spops_call_set_allocator.argtypes = [_c.c_void_p]
c.spops_has_cuda.restype = _c.c_int
c.spops_has_cuda.argtypes = []
c.spops_version.restype = _c.c_char_p
c.spops_version.argtypes = []
c.spops_last_error.restype = _c.c_char_p
c.spops_last_error.argtypes = [_c.c_void_p]


def fail(status: int, ctx=None) -> None:
    """Raise what a status of the library stands for, with its line of detail."""
    if status == 0:
        return
    kinds = {1: ValueError, 2: MemoryError, 3: NotImplementedError}
    raise kinds.get(status, RuntimeError)(c.spops_last_error(ctx).decode())
