# SPDX-License-Identifier: Apache-2.0
"""A job in parts: each part is a file that is there whole or not at all, so that a job goes on where it ended.

    out/job.json            what the job is; another one is refused
    out/cut/F/I_J.bin       points of file F in cell (I, J), as they are stored
    out/cut/F/done
    out/parts/I_J.npz       labels of a tile's core: files, how many points of each, their indices, in that order
    out/tries/I_J           how often a tile was begun
    out/NAME.laz            copies of the files, with labels
"""
from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from . import _las
from ._grid import Grid, Key, Tile

# Of a point in the cut. The first three are what the file has, which scales and offsets make metres of.
POINT = np.dtype([("xyz", "<i4", 3), ("index", "<u4"), ("intensity", "<u2")])
BUFFERED = 8_000_000  # points of a file that are held before they are written


@dataclass(frozen=True)
class Source:
    """A file of points."""

    path: str
    num_points: int
    bytes: int
    scales: tuple[float, float, float]
    offsets: tuple[float, float, float]

    @classmethod
    def of(cls, path: str | os.PathLike) -> Source:
        path = os.path.abspath(path)
        n, scales, offsets = _las.read_header(path)
        if n >= 2**32:
            raise ValueError(f"{path}: {n} points, expected less than 2^32")
        return cls(path, n, os.path.getsize(path), scales, offsets)

    def metres(self, stored: np.ndarray) -> np.ndarray:
        return stored * np.asarray(self.scales) + np.asarray(self.offsets)


def _name(key: Key) -> str:
    return f"{key[0]}_{key[1]}"


def _write(path: Path, write: Callable) -> None:
    """A file that is there whole or not at all."""
    part = path.with_name(f".{os.getpid()}.{path.name}")
    with open(part, "wb") as f:
        write(f)
    os.replace(part, path)


@dataclass(frozen=True)
class Job:
    """Files, the grid that they are cut by, and where the parts go. A value: it can be sent to any process."""

    out: str
    files: tuple[Source, ...]
    grid: Grid
    field: str = "classification"
    keep_logits: bool = False

    @classmethod
    def create(
        cls,
        files: Sequence[str | os.PathLike],
        out: str | os.PathLike,
        voxel_m: float,
        tile_m: float,
        halo_voxels: int,
        origin_m: Sequence[float] = (0.0, 0.0, 0.0),
        field: str = "classification",
        keep_logits: bool = False,
    ) -> Job:
        """A job, new or as it was left.

        Parameters
        ----------
        files : paths of LAS, LAZ and COPC files, no two with one name
        out : folder, made where it is not there
        voxel_m : m
        tile_m : m, a side of a tile; becomes a whole number of voxels, from 16 on a multiple of 4
        halo_voxels : how many voxels around a tile the network reads (spops.receptive_field_of)
        origin_m : m, lower corner of voxel 0
        field : dimension of the files that gets the labels
        keep_logits : True: parts have the logits too

        Raises
        ------
        ValueError : two files with one name; a folder with another job.
        """
        if len({Path(f).name for f in files}) < len(files):
            raise ValueError("Job: two files have one name, expected a name for each")
        side = round(tile_m / voxel_m)
        grid = Grid(voxel_m, max(side if side < 16 else round(side / 4) * 4, 1), halo_voxels, tuple(map(float, origin_m)))
        job = cls(os.path.abspath(out), tuple(map(Source.of, files)), grid, field, keep_logits)
        text = json.dumps({**asdict(job), "out": None}, indent=1)
        place = job._at("job.json")
        for folder in ("cut", "parts", "tries"):
            job._at(folder).mkdir(parents=True, exist_ok=True)
        if place.exists() and place.read_text() != text:
            raise ValueError(f"Job: {place} says another job (files, grid or field), expected the same one, or an empty folder")
        _write(place, lambda f: f.write(text.encode()))
        return job

    def _at(self, *names: str) -> Path:
        return Path(self.out, *names)

    def _part(self, key: Key) -> Path:
        return self._at("parts", f"{_name(key)}.npz")

    # ---- Cut ------------------------------------------------------------------------------------

    def is_cut(self, file: int) -> bool:
        return self._at("cut", str(file), "done").exists()

    def cut(self, file: int) -> int:
        """Sort the points of a file by cell. Holds BUFFERED of them at a time. Returns how many there are."""
        source, folder = self.files[file], self._at("cut", str(file))
        if self.is_cut(file):
            return source.num_points
        shutil.rmtree(folder, ignore_errors=True)  # half done
        folder.mkdir()
        waiting, held, done = {}, 0, 0
        for stored, intensity in _las.chunks(source.path):
            points = np.empty(len(stored), POINT)
            points["xyz"], points["intensity"] = stored, intensity
            points["index"] = np.arange(done, done + len(stored))
            done += len(stored)
            keys = self.grid.cells(self.grid.voxels(source.metres(stored)))
            order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: points of a cell stay in order
            keys, points = keys[order], points[order]
            starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(1)]) if len(keys) else []
            for begin, end in zip(starts, [*starts[1:], len(keys)]):
                waiting.setdefault(tuple(map(int, keys[begin])), []).append(points[begin:end])
            held += len(points)
            if held >= BUFFERED:
                self._flush(folder, waiting)
                held = 0
        self._flush(folder, waiting)
        if done != source.num_points:
            raise ValueError(f"{source.path}: {done} points, expected the {source.num_points} of its header")
        (folder / "done").touch()
        return done

    def _flush(self, folder: Path, waiting: dict) -> None:
        for key, pieces in waiting.items():
            with open(folder / f"{_name(key)}.bin", "ab") as f:
                for p in pieces:
                    p.tofile(f)
        waiting.clear()

    def tiles(self) -> list[Key]:
        """Tiles with points, once all files are cut, in the order of their places."""
        return sorted({key for i in range(len(self.files)) for key in self.tiles_of(i)})

    def tiles_of(self, file: int) -> list[Key]:
        """Tiles that have points of a file, once it is cut."""
        names = (p.stem.split("_") for p in self._at("cut", str(file)).glob("*.bin"))
        return sorted({self.grid.tile_of((int(i), int(j))) for i, j in names})

    # ---- Label ----------------------------------------------------------------------------------

    def is_labelled(self, key: Key) -> bool:
        return self._part(key).exists()

    def load(self, key: Key) -> Tile:
        """The points of a tile and of its halo."""
        columns: list[list] = [[], [], [], [], []]
        for number, source in enumerate(self.files):
            paths = [self._at("cut", str(number), f"{_name(cell)}.bin") for cell in self.grid.cells_of(key)]
            found = [np.fromfile(p, POINT) for p in paths if p.exists()]
            points = np.concatenate(found) if found else np.empty(0, POINT)
            points = points[np.argsort(points["index"], kind="stable")]  # as the file has them
            xyz = source.metres(points["xyz"])
            voxels = self.grid.voxels(xyz)
            read = self.grid.is_read(key, voxels)
            for column, values in zip(columns, (xyz, voxels, points["intensity"], np.full(len(points), number, np.int32), points["index"].astype(np.int64))):
                column.append(values[read])
        return Tile(key, self.grid, *map(np.concatenate, columns))

    def keep(self, tile: Tile, labels: np.ndarray, logits: np.ndarray | None = None) -> None:
        """Keep what was said of a tile: labels [N], logits [N, C] of all its points, of which the core counts."""
        core = tile.is_core
        if len(labels) != len(tile):
            raise ValueError(f"tile {tile.key}: {len(labels)} labels for {len(tile)} points")
        more = {} if logits is None or not self.keep_logits else dict(logits=logits[core])
        files, counts = np.unique(tile.source[core], return_counts=True)  # points of a tile lie by file
        index = tile.index[core].astype(np.uint32)
        _write(self._part(tile.key), lambda f: np.savez(f, files=files, counts=counts, index=index, labels=labels[core].astype(np.uint8), **more))

    def label(self, key: Key, function: Callable[[Tile], tuple], tile: Tile | None = None) -> int:
        """Label a tile that is not yet; function: Tile -> labels [N], and logits [N, C] or None. Returns points of the core."""
        if self.is_labelled(key):
            return 0
        tile = self.load(key) if tile is None else tile
        labels, logits = function(tile)
        self.keep(tile, labels, logits)
        return int(tile.is_core.sum())

    def begin(self, key: Key) -> int:
        """Count a try of a tile, also one that takes its process down. Returns how many there were before."""
        place = self._at("tries", _name(key))
        tries = int(place.read_text()) if place.exists() else 0
        _write(place, lambda f: f.write(str(tries + 1).encode()))
        return tries

    def forget_tries(self) -> None:
        for p in self._at("tries").iterdir():
            p.unlink()

    # ---- Write ----------------------------------------------------------------------------------

    def target(self, file: int) -> Path:
        path = Path(self.files[file].path)
        name = path.name[: -len(".copc.laz")] + ".laz" if path.name.lower().endswith(".copc.laz") else path.name
        return self._at(name)

    def is_written(self, file: int) -> bool:
        return self.target(file).exists()

    def labels_of(self, file: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Labels of a file's points, in its order, and their logits where they were kept."""
        labels, logits, missing = np.zeros(self.files[file].num_points, np.uint8), None, self.files[file].num_points
        for key in self.tiles_of(file):
            with np.load(self._part(key)) as part:
                before = part["files"] < file
                begin, num = int(part["counts"][before].sum()), int(part["counts"][part["files"] == file].sum())
                own = slice(begin, begin + num)
                index = part["index"][own]
                labels[index] = part["labels"][own]
                missing -= len(index)
                if "logits" in part:
                    logits = np.zeros((len(labels), part["logits"].shape[1]), part["logits"].dtype) if logits is None else logits
                    logits[index] = part["logits"][own]
        if missing:
            raise ValueError(f"{self.files[file].path}: {missing} points have no label")
        return labels, logits

    def write(self, file: int) -> int:
        """Write a copy of a file with labels, once all its tiles have some. Returns how many points there are."""
        if not self.is_written(file):
            _las.write_labels(self.files[file].path, self.target(file), self.labels_of(file)[0], self.field)
        return self.files[file].num_points

    def is_complete(self, file: int) -> bool:
        """Whether all tiles of a file have labels."""
        return all(map(self.is_labelled, self.tiles_of(file)))
