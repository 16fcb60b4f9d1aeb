# SPDX-License-Identifier: Apache-2.0
"""CUDA, as torch has it: its current stream, its caching allocator, and the streams that plans are used on.

Plans and scratch of the library's contexts come from torch's caching allocator, in the order of the
stream that they were made on; scratch of captured calls from the pool of the graph.
"""
from __future__ import annotations

import atexit
import ctypes
import threading

import torch

from . import _library, _structs

has_cuda = bool(_library.c.spops_has_cuda()) and torch.backends.cuda.is_built()
current_stream = torch._C._cuda_getCurrentRawStream if has_cuda else None

closing = False  # the interpreter ends: torch's allocator may be gone


@atexit.register
def _close():
    global closing
    closing = True


def _alloc(user, size, stream):
    # the library has made the context's device current, in the runtime that torch uses as well
    try:
        torch.cuda.init()  # JAX's arrays may be all that this process has had on a device
        return torch._C._cuda_cudaCachingAllocator_raw_alloc(size, stream or 0)
    except torch.cuda.OutOfMemoryError:  # the library says so by NULL; any other exception Python prints
        return None


def _free(user, memory, size, stream):
    if not closing:
        torch._C._cuda_cudaCachingAllocator_raw_delete(memory)


allocator = _structs.Allocator(device_alloc=_structs.AllocFunction(_alloc), device_free=_structs.FreeFunction(_free))
if has_cuda:
    _library.c.spops_call_set_allocator(ctypes.byref(allocator))


def stream_of(device: torch.device):
    """The current stream of a CUDA device as a number; None for the CPU."""
    return current_stream(device.index) if device.type == "cuda" else None


def _stream(number: int, device: torch.device):
    return torch.cuda.ExternalStream(number, device) if number else torch.cuda.default_stream(device)


def follow(stream: int, made_on: int, device: torch.device) -> None:
    """What a stream is given from here on runs after what the other has been given. A capture begins when all that
    was enqueued before has run."""
    if not torch.cuda.is_current_stream_capturing():
        _stream(stream, device).wait_stream(_stream(made_on, device))


def wait_for(streams, device: torch.device, stream: int) -> None:
    """Memory of `stream` is given back once what these streams were given before has run."""
    on = _stream(stream, device)
    for s in streams:
        on.wait_stream(_stream(s, device))


def call_on(device: torch.device, entry, *values):
    """A call whose arguments are no tensors, so that tvm-ffi does not know torch's stream."""
    if device.type != "cuda":
        return entry(*values)
    index = torch.cuda.current_device() if device.index is None else device.index
    _library.c.spops_call_set_stream(index, current_stream(index))
    _library.c.spops_call_set_device(index)
    try:
        return entry(*values)
    finally:
        _library.c.spops_call_set_device(-1)
        _library.c.spops_call_set_stream(index, None)
