# SPDX-License-Identifier: Apache-2.0
"""Where tiles are: numbers of voxels, which do not depend on what else there is."""
from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

Key = tuple[int, int]
MOST = 2**31 - 1  # voxels of a tile, and of a halo


def length(value: float, name: str) -> float:
    """A length in m, or an error that has this name."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}, expected a finite number of more than 0")
    return value


@dataclass(frozen=True)
class Grid:
    """Tiles along x and y; along z a tile is the whole cloud.

    voxel_m : m
    tile : voxels along a side of a tile
    halo : voxels around it that are read too
    origin_m : m, lower corner of voxel 0

    Files are cut into cells, a quarter of a tile along each axis where that is a whole number of voxels, so that
    little more is read than a tile and its halo.
    """

    voxel_m: float
    tile: int
    halo: int
    origin_m: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self):
        length(self.voxel_m, "Grid: voxel_m")
        for name, least in (("tile", 1), ("halo", 0)):
            value = getattr(self, name)
            if not (least <= value <= MOST and value == int(value)):
                raise ValueError(f"Grid: {name} is {value:.12g}, expected a whole number of voxels, {least} to 2^31 - 1")
            object.__setattr__(self, name, int(value))
        if len(self.origin_m) != 3 or not all(map(math.isfinite, self.origin_m)):
            raise ValueError(f"Grid: origin_m is {self.origin_m}, expected three finite numbers")

    def voxels(self, xyz: np.ndarray, first: int = 0) -> np.ndarray:
        """The voxels of points, f64 [N, 3] in m -> i32 [N, 3]; first: the number of the first one, which an error names."""
        voxels = np.empty(xyz.shape, np.int32)
        for axis in range(3):  # NumPy is slow along an axis of three
            v = xyz[:, axis] - self.origin_m[axis]
            v /= self.voxel_m
            np.floor(v, out=v)
            if len(v) and not max(abs(v.min()), abs(v.max())) < 2**31 - 2**16:
                i = int(np.flatnonzero(~(np.abs(v) < 2**31 - 2**16))[0])
                raise ValueError(f"Grid: points[{first + i}][{axis}] lies in voxel {v[i]:.4g}, expected less than 2^31 - 2^16 on either side of 0")
            voxels[:, axis] = v
        return voxels

    @property
    def cell(self) -> int:
        """Voxels along a side of a cell."""
        return self.tile if self.tile % 4 else self.tile // 4

    def cells(self, voxels: np.ndarray) -> np.ndarray:
        """The cells that voxels are in, i32 [N, 2]."""
        return np.floor_divide(voxels[:, :2], np.int64(self.cell)).astype(np.int32)

    def tile_of(self, cell: Key) -> Key:
        return cell[0] * self.cell // self.tile, cell[1] * self.cell // self.tile

    def _span(self, key: Key) -> tuple[list[int], list[int]]:
        """The first and the last cell of a tile with its halo, along x and y."""
        lower = self.lower(key)
        return (lower // self.cell).tolist(), ((lower + self.tile + 2 * self.halo - 1) // self.cell).tolist()

    def num_cells_of(self, key: Key) -> int:
        first, last = self._span(key)
        return (last[0] - first[0] + 1) * (last[1] - first[1] + 1)

    def cells_of(self, key: Key, there: Collection[Key] | None = None) -> list[Key]:
        """The cells of a tile and of its halo; there: those of these alone, which may be far fewer."""
        first, last = self._span(key)
        if there is not None and len(there) < self.num_cells_of(key):
            return [c for c in there if first[0] <= c[0] <= last[0] and first[1] <= c[1] <= last[1]]
        return [(i, j) for i in range(first[0], last[0] + 1) for j in range(first[1], last[1] + 1)]

    def lower(self, key: Key) -> np.ndarray:
        """The first voxels of a tile with its halo, along x and y."""
        return np.asarray(key, np.int64) * self.tile - self.halo

    def is_read(self, key: Key, voxels: np.ndarray) -> np.ndarray:
        """Which voxels are the tile's or its halo's."""
        return _within(voxels, self.lower(key), self.tile + 2 * self.halo)

    def is_core(self, key: Key, voxels: np.ndarray) -> np.ndarray:
        """Which voxels are the tile's own."""
        return _within(voxels, self.lower(key) + self.halo, self.tile)

    def reads_all_of(self, key: Key, cell: Key) -> bool:
        """Whether each voxel of a cell is the tile's or its halo's."""
        first = np.asarray(cell, np.int64) * self.cell - self.lower(key)
        return bool(((first >= 0) & (first + self.cell <= self.tile + 2 * self.halo)).all())


def _within(voxels: np.ndarray, lower: np.ndarray, side: int) -> np.ndarray:
    """Which voxels are in a square along x and y: bool [N]."""
    x, y, (i, j) = voxels[:, 0], voxels[:, 1], map(int, lower)
    return (x >= i) & (x < i + side) & (y >= j) & (y < j + side)


@dataclass
class Tile:
    """Points of a tile and of its halo, in the order of their files and of their places in them.

    key : which tile
    grid : Grid
    xyz : f64 [N, 3], m
    voxels : i32 [N, 3]
    intensity : u16 [N]
    is_core : bool [N]
    source, index : which points these are, i32 [N] and i64 [N]
    """

    key: Key
    grid: Grid
    xyz: np.ndarray
    voxels: np.ndarray
    intensity: np.ndarray
    source: np.ndarray
    index: np.ndarray
    is_core: np.ndarray

    def __len__(self) -> int:
        return len(self.xyz)
