# SPDX-License-Identifier: Apache-2.0
"""One CUDA graph for scans of every size."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree

from ._capacity import Capacity, FilledSites, overflow
from ._tensor import SparseTensor


class Graph:
    """A function of a sparse tensor, with memory for the largest one that there will be.

    The rows of a scan are copied into tensors of ``capacity.rows`` rows, and its maps are made on the
    device, in blocks of fixed sizes. Nothing waits for the device, so that on CUDA all that ``f`` does
    is captured into one graph, which serves scans of every size. On the CPU, f is called each time.

    Parameters
    ----------
    f : callable
        A network, or a training step with its loss, backward and optimiser: ``f(x, *tensors)``, x a
        :class:`spops.SparseTensor` of ``capacity.rows`` rows of which ``x.num_rows`` are in use
        (``x.mask``). Rows after those hold zeros, or what f makes of zeros: norms must be
        ``spops.nn.BatchNorm`` or LayerNorm, losses must mask.
    capacity : Capacity

    Attributes
    ----------
    overflow : list of str
        What did not fit in the last call, a sentence for each plan; empty: all did. Waits for the
        device. Rows and pairs that do not fit are left out.

    The first call runs f and the second captures it, each with its own scan. Results are those of f;
    on CUDA later calls write them again, so that what is to stay is cloned. ``y.compact()`` has the rows
    in use alone.

    Raises
    ------
    ValueError : a scan without spatial_shape or batch_size, with more rows than the capacity, or whose
        shape, batch size, channels or dtype are not those of the first one.
    """

    def __init__(self, f, capacity: Capacity):
        self.f, self.capacity = f, capacity
        self._static: list[Tensor] | None = None
        self._kind = self._graph = self._stream = None
        self._result, self._plans = None, []

    def _check(self, x: SparseTensor, tensors) -> None:
        if x.spatial_shape is None or x.sites._batch_size is None:
            raise ValueError("Graph: the scan has no spatial_shape or no batch_size, expected both")
        if len(x) > self.capacity.rows:
            raise ValueError(f"Graph: the scan has {len(x)} rows, expected at most the capacity of {self.capacity.rows}")
        kind = x.spatial_shape, x.batch_size, x.feats.shape[1], x.dtype, x.device, len(tensors)
        if self._kind is None:
            self._kind = kind
        elif kind != self._kind:
            raise ValueError(f"Graph: the scan's shape, batch size, channels, dtype, device and tensors are {kind}, expected {self._kind}")

    def _fill(self, x: SparseTensor, tensors) -> None:
        """Copy the scan, and tensors with a row for each of its rows, into those of the capacity."""
        given = [x.feats.detach(), x.coords, *tensors]
        if self._static is None:
            rows = [t.dim() > 0 and t.shape[0] == len(x) for t in given]
            self._by_row = rows
            self._static = [t.new_zeros((self.capacity.rows, *t.shape[1:]) if r else t.shape) for t, r in zip(given, rows)]
            self._num_rows = torch.zeros(1, dtype=torch.int32, device=x.device)
        for to, t, by_row in zip(self._static, given, self._by_row):
            n = len(x) if by_row else None
            if t.shape[1:] != to.shape[1:] or (t.shape[0] != n if by_row else t.shape != to.shape):
                raise ValueError(f"Graph: a tensor is {list(t.shape)}, expected {[n, *to.shape[1:]] if by_row else list(to.shape)}")
            if by_row:
                to[:n].copy_(t)
                to[n:].zero_()
            else:
                to.copy_(t)
        self._num_rows.fill_(len(x))

    def _run(self):
        shape, batch_size = self._kind[:2]
        feats, coords, *tensors = self._static
        sites = FilledSites(coords, self._num_rows, shape, batch_size, (1,) * len(shape), self.capacity)
        self._plans = sites.plans
        return self.f(SparseTensor(feats, sites=sites), *tensors)

    def __call__(self, x: SparseTensor, *tensors: Tensor):
        self._check(x, tensors)
        self._fill(x, tensors)
        if x.device.type != "cuda":
            return self._run()
        here = torch.cuda.current_stream(x.device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(x.device)
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                result = self._run()
            here.wait_stream(self._stream)
            for t in _pytree.tree_leaves(result.feats if isinstance(result, SparseTensor) else result):
                if isinstance(t, Tensor):
                    t.record_stream(here)
            return result
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._result = self._run()
        self._graph.replay()
        return self._result

    @property
    def overflow(self) -> list[str]:
        return overflow(self._plans)
