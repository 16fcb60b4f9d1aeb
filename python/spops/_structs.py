# SPDX-License-Identifier: Apache-2.0
"""The structs of the C interface that Python passes, by ctypes; tests hold each to tests/abi/interface.txt."""
from __future__ import annotations

import ctypes as _c

_p, _text, _i32, _i64, _size, _double, _enum = _c.c_void_p, _c.c_char_p, _c.c_int32, _c.c_int64, _c.c_size_t, _c.c_double, _c.c_int
DIMS = 4  # SPOPS_MAX_DIMS


class _Sized(_c.Structure):
    """One that begins with its own size."""

    def __init__(self, *fields, **named):
        super().__init__(_c.sizeof(self), *fields, **named)


# ---- The list of operators and kinds of plans (spops/call.h, spops/plan.h) ----


class Argument(_Sized):
    _fields_ = [
        ("struct_size", _size), ("name", _text), ("kind", _enum), ("is_optional", _i32), ("needs", _text), ("type", _text), ("num_dims", _i32),
        ("dims", _text * 3), ("is_dense", _i32), ("may_be", _text), ("is_updated", _i32), ("first", _text), ("last", _text), ("values", _text),
        ("int_default", _i64), ("float_default", _double), ("count", _i32),
    ]  # fmt: skip


class Operator(_Sized):
    _fields_ = [
        ("struct_size", _size), ("name", _text), ("function", _text), ("types", _text), ("inputs", _text), ("outputs", _text), ("attributes", _text),
        ("gradient", _text), ("scratch", _text), ("doc", _text), ("index", _i32), ("num_inputs", _i32), ("num_outputs", _i32),
        ("num_attributes", _i32), ("num_optional", _i32), ("arguments", _c.POINTER(_c.POINTER(Argument))), ("entry", _p), ("needs_handles", _i32),
    ]  # fmt: skip


class Kind(_Sized):
    _fields_ = [("struct_size", _size), ("kind", _enum), ("version", _i32), ("name", _text), ("fields", _text), ("parents", _text), ("state", _text)]


# ---- Boxed calls (spops/call.h) ----


class Content(_c.Union):
    _fields_ = [("i", _i64), ("f", _double), ("p", _p)]


class Value(_c.Structure):
    _fields_ = [("type", _i32), ("reserved", _c.c_uint32), ("v", Content)]


class DLTensor(_c.Structure):
    """DLPack's, which is in no header of this library."""

    _fields_ = [
        ("data", _p), ("device_type", _i32), ("device_id", _i32), ("num_dims", _i32), ("dtype_code", _c.c_uint8), ("dtype_bits", _c.c_uint8),
        ("dtype_lanes", _c.c_uint16), ("shape", _c.POINTER(_i64)), ("strides", _c.POINTER(_i64)), ("byte_offset", _c.c_uint64),
    ]  # fmt: skip


# ---- Contexts, rows, kernels (spops/context.h, matrix.h, kernel_map.h, receptive.h) ----

AllocFunction = _c.CFUNCTYPE(_p, _p, _size, _p)  # on a device
FreeFunction = _c.CFUNCTYPE(None, _p, _p, _size, _p)


class Allocator(_c.Structure):
    _fields_ = [("user", _p), ("host_alloc", _p), ("host_free", _p), ("device_alloc", AllocFunction), ("device_free", FreeFunction)]


class ContextOptions(_Sized):
    _fields_ = [
        ("struct_size", _size), ("backend", _enum), ("device", _i32), ("num_threads", _i32), ("stream", _p), ("allocator", Allocator),
        ("dense_library", _i32), ("reserved", _i32),
    ]  # fmt: skip


class Matrix(_c.Structure):
    _fields_ = [("data", _p), ("rows", _i64), ("cols", _i64), ("row_stride", _i64), ("dtype", _enum)]


class KernelShape(_Sized):
    _fields_ = [("struct_size", _size), ("dims", _i32)] + [(n, _i32 * DIMS) for n in ("size", "stride", "padding", "dilation")]


class ReceptiveLayer(_c.Structure):
    _fields_ = [("kind", _enum), ("from", _i32 * 2), ("kernel", _c.POINTER(KernelShape)), ("shift", _i32 * DIMS)]


class Reach(_c.Structure):
    _fields_ = [("is_read", _i32), ("reserved", _i32)]
    _fields_ += [(n, _i64 * DIMS) for n in ("stride", "lower", "upper")] + [(n, _double * DIMS) for n in ("lower_m", "upper_m")]


# ---- Communicators (spops/comm.h) ----


class CommOptions(_Sized):
    _fields_ = [("struct_size", _size), ("timeout_ms", _i32), ("reserved", _i32)]


class CommLayout(_c.Structure):
    _fields_ = [(n, _c.POINTER(_i64)) for n in ("send_counts", "send_offsets", "recv_counts", "recv_offsets")]


NAMES = {
    "spops_operator_argument": Argument, "spops_operator": Operator, "spops_plan_kind_info": Kind, "spops_value": Value,
    "spops_value_content": Content, "spops_allocator": Allocator, "spops_context_options": ContextOptions, "spops_matrix": Matrix,
    "spops_kernel_shape": KernelShape, "spops_receptive_layer": ReceptiveLayer, "spops_reach": Reach, "spops_comm_options": CommOptions,
    "spops_comm_layout": CommLayout,
}  # fmt: skip
