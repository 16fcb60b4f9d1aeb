# SPDX-License-Identifier: Apache-2.0
"""From a tile's points to labels, in such a way that other points change no bit."""
from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import torch

from .. import _layers, devoxelize
from .. import functional as F
from .._tensor import Sites, SparseTensor
from ._grid import Tile


def plain_features(tile: Tile, device: torch.device) -> torch.Tensor:
    """f32 [N, 4]: where a point lies in its voxel, from -1/2 to 1/2 along each axis, and 1."""
    at = (torch.from_numpy(tile.xyz).to(device) - torch.tensor(tile.grid.origin_m, dtype=torch.float64, device=device)) / tile.grid.voxel_m
    return torch.nn.functional.pad((at - at.floor() - 0.5).float(), (0, 1), value=1.0)


class Segment:
    """Runs a network on tiles.

    Parameters
    ----------
    net : Module
        SparseTensor [voxels, C] -> SparseTensor or Tensor [voxels, classes]. In eval mode. Its coordinates
        are batch 0 and the voxels of the grid.
    device : where it runs
    dtype : of features, and of the network on CUDA by autocast: torch.float32, float16 or bfloat16
    features : (Tile, device) -> f32 [N, C], an array or a tensor; None: net.features, else :func:`plain_features`
    logits : True: the logits of all points come back too

    Called with a Tile it gives labels, u8 [N], and logits, f32 [N, classes], or None. The features of a voxel
    are the mean of those of its points, and a point gets what its voxel has.
    """

    def __init__(
        self, net: torch.nn.Module, device: str = "cpu", dtype: torch.dtype = torch.float32, features: Callable | None = None, logits: bool = False
    ):
        self.net, self.device, self.dtype, self.logits = net.eval().to(device), torch.device(device), dtype, logits
        self.features = features or getattr(net, "features", None) or plain_features

    def pin(self, memory: np.ndarray) -> Callable[[], None] | None:
        """Let CUDA copy from bytes in which tiles will be, with no copy in between. Returns what undoes it; None: it cannot be."""
        if self.device.type != "cuda":
            return None
        runtime, begin = torch.cuda.cudart(), memory.ctypes.data
        with torch.cuda.device(self.device):
            torch.cuda.current_stream().synchronize()  # there is a context
            if int(runtime.cudaHostRegister(begin, memory.nbytes, 1)) != 0:  # for all contexts
                with contextlib.suppress(RuntimeError):
                    torch.ones(1, device=self.device)  # else a later launch would be told of that error
                return None
        return lambda: runtime.cudaHostUnregister(begin)

    def voxels(self, tile: Tile) -> tuple[SparseTensor, torch.Tensor]:
        """The voxels of a tile, and its points in voxels from the first one on."""
        places = torch.from_numpy(tile.voxels).to(self.device)
        low = places.amin(0) if len(tile) else places.new_zeros(3)
        most = int((places.amax(0).long() - low.long()).max()) if len(tile) else 0
        if most >= 2**23:
            raise ValueError(f"tile {tile.key}: {most} voxels along an axis, expected less than 2^23")
        # Whole numbers and a half, which f32 has, and their sum with low in f64.
        local = (places - low).float() + 0.5
        del places
        feats = torch.as_tensor(self.features(tile, self.device), dtype=torch.float32, device=self.device)
        if feats.dim() != 2 or len(feats) != len(tile):
            raise ValueError(f"Segment: features are {list(feats.shape)}, expected [{len(tile)}, C]")
        origin = [-float(v) for v in low.tolist()]
        voxels = F.voxels(local, size_m=1.0, origin_m=origin, order="lexicographic", max_cols=feats.shape[1])
        set = F.voxels_coords(voxels)
        rows, _ = F.coords_rows(set)
        mean = F.segreduce(feats, F.voxels_segments(voxels), reduce="mean")
        x = SparseTensor(mean.to(self.dtype), sites=Sites(rows, None, 1, (1, 1, 1), set))
        x.sites.size_m, x.sites.origin_m = 1.0, origin
        return x, local

    @torch.no_grad()
    def __call__(self, tile: Tile) -> tuple[np.ndarray, np.ndarray | None]:
        low_precision = self.dtype is not torch.float32 and self.device.type == "cuda"
        with _layers.crop_independent(), torch.autocast("cuda", self.dtype, enabled=low_precision):
            x, points = self.voxels(tile)
            y = self.net(x)
        logits = y.feats if isinstance(y, SparseTensor) else y
        if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != len(x) or not 1 <= logits.shape[1] <= 256:
            found = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise ValueError(f"Segment: the network gave {found}, expected logits [{len(x)} voxels, 1 to 256 classes]")
        logits = logits.float()
        bad = logits.isnan().any(1)
        if bad.any():
            raise ValueError(f"Segment: logits of {int(bad.sum())} of {len(x)} voxels are NaN, the first at {x.coords[bad][0, 1:].tolist()}")
        labels = devoxelize(x.replace(logits.argmax(1, keepdim=True).float()), points)[:, 0].to(torch.uint8)
        return labels.cpu().numpy(), devoxelize(x.replace(logits), points).cpu().numpy() if self.logits else None
