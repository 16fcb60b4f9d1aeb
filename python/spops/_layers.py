# SPDX-License-Identifier: Apache-2.0
"""Autograd functions of layers: what a layer does beside its operator, in one node.

F.sparseconv and F.batchnorm know nothing of where their inputs come from. In a layer the weights are
cast for autocast, laid out anew where another library's shape is kept, and their gradient goes back
the same way: as single operators of torch these are six launches and five nodes a convolution.
"""
from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import _made
from . import functional as F
from ._made import _is_traced, current_stream


_crop_independent: ContextVar[bool] = ContextVar("crop_independent", default=False)


def plans_are_crop_independent() -> bool:
    """Whether plans of convolutions that are made here and now are crop_independent."""
    return _crop_independent.get()


@contextmanager
def crop_independent():
    """Plans of convolutions that are made inside give a part of a cloud the bits of the whole.

    A row then has the same bits whatever other rows there are, as long as those that its taps meet are
    (docs/tiles.md). On the CPU that is so anyway. On CUDA it costs time where rows are few and channels
    96 or more. It holds for this thread, as torch.autocast does.
    """
    before = _crop_independent.set(True)
    try:
        yield
    finally:
        _crop_independent.reset(before)


def matrices(weight: Tensor, krsc: bool) -> Tensor:
    """[taps, C_in, C_out] of a parameter; krsc: of one of shape [C_out, *sizes, C_in]."""
    return weight.reshape(weight.shape[0], -1, weight.shape[-1]).permute(1, 2, 0) if krsc else weight


def empty_krsc(out_channels: int, size, in_channels: int, **like) -> Tensor:
    """A parameter of shape [C_out, *size, C_in] that lies in memory as [taps, C_in, C_out]."""
    taps = 1
    for k in size:
        taps *= k
    return torch.empty(taps, in_channels, out_channels, **like).permute(2, 0, 1).view(out_channels, *size, in_channels)


def work_dtype(x: Tensor) -> torch.dtype:
    """What a layer multiplies in: autocast's dtype, or that of its input."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.is_floating_point() and x.dtype is not torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype


def vector(v: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A bias of a layer that works in dtype, as the library takes it."""
    return None if v is None else v.to(_made.sum_dtype(dtype))


@functools.cache
def _has_matrix_gradients(index: int) -> bool:
    """Whether tensor cores compute all passes of a convolution on this device."""
    return torch.cuda.get_device_capability(index) == (9, 0)


def fits_tensor_cores(x: Tensor, out_channels: int, groups: int, dtype: torch.dtype) -> bool:
    """Whether tensor cores take a layer in every pass, once its rows are whole (:func:`whole_rows`)."""
    is_narrow = dtype is torch.float16 or dtype is torch.bfloat16
    return x.is_cuda and is_narrow and groups == 1 and out_channels % 8 == 0 and _has_matrix_gradients(x.device.index)


def whole_rows(x: Tensor, channels: int) -> Tensor:
    """x of 16-bit numbers, with zeros up to so many channels, its rows from multiples of 16 bytes on."""
    if x.shape[1] < channels:
        return torch.nn.functional.pad(x, (0, channels - x.shape[1]))
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        return x.clone(memory_format=torch.contiguous_format)
    return x


def _factors(x: Tensor, weight: Tensor, dtype: torch.dtype, krsc: bool, padded: int) -> tuple[Tensor, Tensor]:
    """x and the matrices of weight, as the library multiplies them; padded: channels of whole rows, or 0."""
    x, w = x.to(dtype), matrices(weight, krsc).to(dtype).contiguous()
    if padded:
        if w.shape[1] < padded:
            w = torch.nn.functional.pad(w, (0, 0, 0, padded - w.shape[1]))
        x = whole_rows(x, padded)
    return x, w


class _Convolution(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, plan, groups, dtype, krsc, padded):
        if plan.stream is not None and plan.stream != current_stream(plan.device.index):
            plan.use()
        ctx.x_dtype, ctx.channels = x.dtype, x.shape[1]
        x, w = _factors(x, weight, dtype, krsc, padded)
        out = (x.new_empty if plan.description is None else x.new_zeros)((plan.num_out, w.shape[-1]))
        _made.sparseconv_raw(x, w, bias, None, None, None, None, plan.handle, plan.ints, plan.description, out, groups, 0, 0, False, 0.0, None)
        ctx.save_for_backward(x, w)
        ctx.plan, ctx.groups, ctx.krsc, ctx.padded, ctx.weight = plan, groups, krsc, padded, (weight.shape, weight.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        plan, (shape, dtype), channels = ctx.plan, ctx.weight, ctx.channels
        of_x, of_w, of_bias = ctx.needs_input_grad[:3]
        grad = grad.to(w.dtype)
        if ctx.padded:
            grad = whole_rows(grad, 0)
        gx = (x.new_empty if plan.description is None else x.new_zeros)(x.shape) if of_x else None
        sums = torch.float32 if dtype is torch.float32 else w.dtype  # f32 is what the products are summed in
        gw = torch.empty_like(w, dtype=sums) if of_w else None
        _, _, gb = _made.sparseconv_backward_raw(x, w, grad, plan.handle, plan.ints, plan.description, gx, gw, of_bias, ctx.groups, 0)
        if ctx.padded > channels:
            gx = gx[:, :channels] if of_x else None
            gw = gw[:, :channels] if of_w else None
        if of_x:
            gx = gx.to(ctx.x_dtype)
        if of_w:
            gw = (gw.permute(2, 0, 1) if ctx.krsc else gw).reshape(shape).to(dtype)
        return gx, gw, gb, None, None, None, None, None


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, relation, groups: int = 1, krsc: bool = False, activation: str = "none", activation_slope: float = 0.0
) -> Tensor:
    """A sparse convolution by a layer's parameters, and what follows it, in the dtype of autocast or of x."""
    dtype = work_dtype(x)
    out_channels = weight.shape[0 if krsc else -1]
    is_traced = _is_traced(x)
    padded = (x.shape[1] + 7) // 8 * 8 if not is_traced and fits_tensor_cores(x, out_channels, groups, dtype) else 0
    plan = relation.conv(max(x.shape[1], out_channels), not padded)
    needs = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad))
    after = dict(activation=activation, activation_slope=activation_slope)
    if is_traced:
        return F.sparseconv(x.to(dtype), matrices(weight, krsc).to(dtype), plan, bias=bias, groups=groups, **after)
    if not needs:
        return F.sparseconv(*_factors(x, weight, dtype, krsc, padded), plan, bias=bias, groups=groups, **after)
    out = _Convolution.apply(x, weight, bias, plan, groups, dtype, krsc, padded)
    return out if activation == "none" else F.activation(out, kind=activation, activation_slope=activation_slope)


class _BatchNorm(Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, running_mean, running_var, momentum, epsilon, activation, slope):
        mean, var = x.new_empty((2, x.shape[1]), dtype=_made.sum_dtype(x.dtype)).unbind(0)
        _made.batchnorm_statistics_raw(x, None, mean, var, running_mean, running_var, momentum)
        out = _made.batchnorm_raw(x, mean, var, gamma, beta, None, None, epsilon, activation, slope)
        ctx.save_for_backward(x, mean, var, gamma, beta)
        ctx.epsilon, ctx.activation, ctx.slope = epsilon, activation, slope
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, mean, var, gamma, beta = ctx.saved_tensors
        needs = ctx.needs_input_grad
        gx, g_gamma, g_beta = _made.batchnorm_backward_raw(
            x, mean, var, gamma, beta, grad.to(x.dtype), None, None, gamma is not None and needs[1], beta is not None and needs[2],
            ctx.epsilon, ctx.activation, False, ctx.slope,
        )  # fmt: skip
        return gx, g_gamma, g_beta, None, None, None, None, None, None


def batchnorm(x, gamma, beta, running_mean, running_var, momentum: float, epsilon: float, activation: str, slope: float = 0.0) -> Tensor:
    """Batch norm in training: statistics of x, the running ones updated, rows normalised."""
    if _is_traced(x):
        mean, var = F.batchnorm_statistics(x.detach(), momentum=momentum, running_mean=running_mean, running_var=running_var)[:2]
        return F.batchnorm(x, mean, var, gamma, beta, epsilon=epsilon, activation=activation, activation_slope=slope)
    number = _made.batchnorm_activation_numbers[activation]
    return _BatchNorm.apply(x, gamma, beta, running_mean, running_var, momentum, epsilon, number, slope)
