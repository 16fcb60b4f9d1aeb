# SPDX-License-Identifier: Apache-2.0
"""Weights of convolutions in the layouts of other libraries.

    layer.weight.data = spops.weights.load("minkowski", state["kernel"], kernel_size=3, dims=3,
                                           in_channels=32, out_channels=64)

Layers of spops.nn take [taps, C_in / groups, C_out], taps with the last axis fastest; weights of
another library hold the same numbers in another order, and raise no error where they are loaded as
they are. docs/weights.md says which layer of each library is which of ours, with its padding.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _library
from ._structs import KernelShape
from ._tensor import per_axis

_c = ctypes


_names: list[str] = []
_layout_name = _library.function("spops_weights_layout_name", _c.c_char_p, _c.c_int)
_types = _c.c_int, _c.c_void_p, _c.c_int, _c.POINTER(KernelShape), _c.c_int32, _c.c_int64, _c.c_int64, _c.c_int, _c.c_void_p, _c.c_void_p
_load, _save = (_library.function(f"spops_weights_{verb}", *_types) for verb in ("load", "save"))


def layouts() -> list[str]:
    """Names of the layouts that load and save know: "torch", "spconv2", "minkowski", ..."""
    if not _names:
        while (name := _layout_name(len(_names)).decode()) != "?":
            _names.append(name)
    return list(_names)


def _run(f, layout, w, shape, kernel_size, dims, in_channels, out_channels, groups) -> Tensor:
    names = layouts()
    if layout not in names:
        raise ValueError(f"weights: layout is {layout!r}, expected one of {' '.join(names)}")
    size = per_axis(kernel_size, dims, "weights: kernel_size")
    taps = 1
    for k in size:
        taps *= k
    count = taps * (in_channels // groups) * out_channels
    if w.numel() != count:
        raise ValueError(f"weights: there are {w.numel()} numbers, expected {count}")
    # What it moves is not looked at: integers of the elements' size hold every dtype.
    number = {4: 0, 2: 1, 1: 6}.get(w.element_size())
    if number is None:
        raise ValueError(f"weights: dtype is {w.dtype}, expected elements of 1, 2 or 4 bytes")
    source = w.detach().contiguous().cpu()
    to = torch.empty_like(source).reshape(shape(taps))
    kernel = KernelShape(dims)
    for a in range(4):
        kernel.size[a] = size[a] if a < dims else 1
        kernel.stride[a] = kernel.dilation[a] = 1
    ctx = _library.new_context("cpu", num_threads=1)
    try:
        status = f(ctx, names.index(layout), _c.byref(kernel), groups, in_channels, out_channels, number, source.data_ptr(), to.data_ptr())
        _library.fail(status, ctx)
    finally:
        _library.c.spops_context_destroy(ctx)
    return to.to(w.device)


def load(layout: str, w: Tensor, *, kernel_size: int | Sequence[int], dims: int, in_channels: int, out_channels: int, groups: int = 1) -> Tensor:
    """Weights of another library as layers of spops.nn take them.

    Parameters
    ----------
    layout : str
        Of :func:`layouts`; include/spops/weights.h has what each is.
    w : Tensor
        As many numbers as the layer has, in that layout; f32, f16, bf16, f8 or i8.
    kernel_size : int, or one for each axis
    dims : int, 1 to 4
    in_channels, out_channels, groups : of the layer

    Returns
    -------
    Tensor [taps, in_channels / groups, out_channels], dtype and device of w.

    Raises
    ------
    ValueError, NotImplementedError: with the library's line.

    Notes
    -----
    Calls ``spops_weights_load``.
    """
    return _run(_load, layout, w, lambda taps: (taps, in_channels // groups, out_channels), kernel_size, dims, in_channels, out_channels, groups)


def save(layout: str, w: Tensor, *, kernel_size: int | Sequence[int], dims: int, groups: int = 1) -> Tensor:
    """The way back: w is [taps, C_in / groups, C_out]; returns its numbers in a layout, in one dimension."""
    return _run(_save, layout, w, lambda taps: (-1,), kernel_size, dims, w.shape[-2] * groups, w.shape[-1], groups)
