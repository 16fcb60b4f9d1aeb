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

from . import _structs

_c = ctypes


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

_p, _i32 = _c.c_void_p, _c.c_int32
bound: dict[str, tuple] = {}  # types of the calls that Python makes: result, then arguments


def function(name: str, result, *arguments):
    """A call of the library, with its types."""
    f = getattr(c, name)
    f.restype, f.argtypes = result, arguments
    bound[name] = result, *arguments
    return f


for _name, *_types in (
    ("spops_operators", _c.POINTER(_c.POINTER(_structs.Operator)), _c.POINTER(_i32)),
    ("spops_plan_kinds", _c.POINTER(_structs.Kind), _c.POINTER(_i32)),
    ("spops_plan_get_kind", _c.c_int, _p),
    ("spops_plan_get_fields", _i32, _p, _c.POINTER(_c.c_int64), _i32),
    ("spops_plan_bytes", _c.c_size_t, _p),
    ("spops_plan_scratch_bytes", _c.c_size_t, _p),
    ("spops_plan_measure", _c.c_int, _p, _c.POINTER(_c.c_int64), _i32, _c.POINTER(_c.c_size_t), _c.POINTER(_c.c_size_t)),
    ("spops_call_destroy", None, _p),
    ("spops_call_release", None),
    ("spops_call_set_stream", None, _i32, _p),
    ("spops_call_set_device", None, _i32),
    ("spops_call_set_allocator", None, _c.POINTER(_structs.Allocator)),
    ("spops_context_create", _c.c_int, _c.POINTER(_structs.ContextOptions), _c.POINTER(_p)),
    ("spops_context_destroy", None, _p),
    ("spops_has_cuda", _c.c_int),
    ("spops_version", _c.c_char_p),
    ("spops_last_error", _c.c_char_p, _p),
):
    function(_name, *_types)


def fail(status: int, ctx=None) -> None:
    """Raise what a status of the library stands for, with its line of detail."""
    if status == 0:
        return
    kinds = {1: ValueError, 2: MemoryError, 3: NotImplementedError, 10: CommBroken}
    raise kinds.get(status, RuntimeError)(c.spops_last_error(ctx).decode())


def new_context(device_type: str, device: int = 0, **options) -> _c.c_void_p:
    """A context on "cpu" or "cuda"; options as spops_context_options has them. spops_context_destroy frees it."""
    given = _structs.ContextOptions(backend={"cpu": 1, "cuda": 2}[device_type], device=device, **options)
    ctx = _p()
    fail(c.spops_context_create(_c.byref(given), _c.byref(ctx)))
    return ctx


def measure(ctx, ints: tuple[int, ...]) -> int:
    """Bytes of the block of a described plan with all that it stands on."""
    size = _c.c_size_t()
    fail(c.spops_plan_measure(ctx, (_c.c_int64 * len(ints))(*ints), len(ints), _c.byref(size), None), ctx)
    return size.value
