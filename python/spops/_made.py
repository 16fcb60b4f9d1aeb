# SPDX-License-Identifier: Apache-2.0
"""What the functions that _generate.py writes stand on; they are executed in this module."""
from __future__ import annotations

from ctypes import c_void_p  # noqa: F401


import torch
import tvm_ffi
from torch import Tensor
from torch._C import _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

from . import _library, _rows
from ._device import call_on, current_stream  # noqa: F401
from ._plan import Plan, description_of, owners, recipe as _recipe  # noqa: F401
from .comm import Comm  # noqa: F401

for _error in (MemoryError, NotImplementedError, _library.CommBroken):  # not all of tvm-ffi's versions know these by name
    tvm_ffi.register_error(_error.__name__, _error)
module = tvm_ffi.load_module(_library.path)

dtypes = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2, "i8": torch.int8, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8, "f64": torch.float64,
}  # fmt: skip
if hasattr(torch, "float4_e2m1fn_x2"):
    dtypes["f4e2m1"] = torch.float4_e2m1fn_x2
sets = {
    "float": ("f32", "f16", "bf16"),
    "real": ("f32", "f16", "bf16", "f64"),
    "narrow": ("f8e4m3", "f8e5m2", "f4e2m1", "i8"),
}
_f4 = dtypes.get("f4e2m1")
_plain = frozenset((Tensor, torch.nn.Parameter))


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of rows are carried in, and what is f32 beside most rows has: f64 of f64."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _is_traced(x: Tensor) -> bool:
    """A compiler, a mode, a transform or a subclass of tensors wants to see operators."""
    return bool(
        is_compiling()
        or _len_torch_dispatch_stack()
        or type(x) not in _plain
        or peek_interpreter_stack() is not None
    )


def _compact(x: Tensor, dense: bool) -> Tensor:
    """x, whose rows or columns have gaps, as the library reads it: columns without a gap."""
    if not dense and x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= x.shape[1]:
        return x
    return x.contiguous()


def _indices(x: Tensor) -> Tensor:
    """x in i32. 64 bits are looked at, which waits for the device: nothing wraps around."""
    if x.dtype is torch.int64:
        y = x.to(torch.int32)
        if not torch.equal(y.to(torch.int64), x):
            raise ValueError(f"indices are {x.min().item()} to {x.max().item()}, expected 32 bits")
        return y
    return x.int() if x.dtype in (torch.uint8, torch.int16, torch.int8) else x


def _ints(v):
    """A list of an operator's attribute."""
    return v if v is None or isinstance(v, int) else tvm_ffi.Shape(tuple(int(i) for i in v))


def _list(v, number):
    """A list of an attribute as torch's operators take it."""
    return v if v is None else [number(v)] if isinstance(v, (int, float)) else [number(i) for i in v]


def _floats(v):
    if v is None:
        return None
    return torch.as_tensor(v, dtype=torch.float64, device="cpu").reshape(-1).contiguous()


def _width(x: Tensor):
    """Columns of a matrix, of which f4e2m1 has two in an element."""
    return 2 * x.shape[-1] if x.dtype is _f4 else x.shape[-1]


def _cols(n, dtype):
    return (n + 1) // 2 if dtype is _f4 else n


def _choose(dtype, like, allowed: tuple, operator: str, output: str):
    """The dtype of an output that nothing but the caller says."""
    if dtype is not None:
        return dtype
    if like in [dtypes[a] for a in allowed if a in dtypes]:
        return like
    raise TypeError(f"{operator}: dtype of {output} is not given, expected one of {' '.join(allowed)}")


def _indexed(device: torch.device) -> torch.device:
    """A CUDA device with its number."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _use(token) -> None:
    """The plan of a token is used on torch's current stream."""
    if token is not None and token.is_cuda:
        token.record_stream(torch.cuda.current_stream(token.device))
        return
    owner = owners.get(int(token)) if token is not None else None
    if owner is not None:
        owner.use_on(current_stream(owner.device.index))


def _plan_of(token, ints):
    """What the library takes for a plan of an operator of torch.ops: (handle or block, description)."""
    if token is None:
        return None, None
    if token.dtype is torch.int64:
        return c_void_p(int(token)), None
    return token, description_of(ints)


def refuse_vmap(name: str):
    def refuse(info, in_dims, *args):
        raise NotImplementedError(
            f"spops.{name}: vmap is not there: rows of several samples go into one call, the sample as the first column of coordinates"
        )

    return refuse


def _not_a_plan(operator: str, argument: str, value, kind: str):
    raise TypeError(f"{operator}: {argument} is of type {type(value).__name__}, expected a Plan of kind {kind}")


def _no_out(operator: str, output: str):
    raise ValueError(f"{operator}: {output} is given, and a gradient is asked for or the call is traced: leave it to the call")


def _autocast(x):
    """x in the dtype of autocast on its device."""
    if x is None or not torch.is_autocast_enabled(x.device.type) or not x.is_floating_point() or x.dtype is torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _shaped(g, x: Tensor):
    """A gradient in the shape and dtype of what it belongs to."""
    if g is None or x is None:
        return None
    if g.shape != x.shape:
        g = g.reshape(x.shape)
    return g if g.dtype is x.dtype else g.to(x.dtype)


def _epilogue(y: Tensor, scale, shift, residual, kind: int, slope: float):
    """What follows the sum of a layer, where it must have a gradient."""
    if scale is not None:
        y = y * scale.to(y.dtype)
    if shift is not None:
        y = y + shift.to(y.dtype)
    if residual is not None:
        y = y + residual
    return activated(y, kind, slope)


def activated(y: Tensor, kind: int, slope: float) -> Tensor:
    """An activation by its number, where it is not a part of a call."""
    if kind < 2:
        return torch.relu(y) if kind else y
    return activation(y, kind=kind, activation_slope=slope)  # noqa: F821: a function of the list


def _unpacked(outputs: tuple):
    return outputs[0] if len(outputs) == 1 else outputs
