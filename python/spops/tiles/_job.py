# SPDX-License-Identifier: Apache-2.0
"""A job in parts: each part is a file that is there whole or not at all, so that a job goes on where it ended.

    out/job.json            what the job is; another one is refused
    out/cut/F/I_J.bin       points of file F in cell (I, J), as they are stored; the folder has another name until all are there
    out/parts/I_J.npz       labels of a tile's core: files, how many points of each, their indices, in that order
    out/tries/NAME          how often a tile, I_J, or another part was begun
    out/lock                held by the process that does all of it
    out/NAME.laz            copies of the files, with labels
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from . import _las
from ._grid import Grid, Key, Tile, length

# Of a point in the cut. The first three are what the file has, which scales and offsets make metres of.
POINT = np.dtype([("xyz", "<i4", 3), ("index", "<u4"), ("intensity", "<u2")])
BYTES = np.dtype(f"V{POINT.itemsize}")  # NumPy moves these faster than the same structure
BUFFERED = 8_000_000  # points of a file that are held before they are written
FEW_CELLS = 1024  # of a tile: as many are asked for one by one
BLOCK = 1 << 15  # points of which numbers are made at a time: they stay in a core's cache


class Refused(ValueError):
    """An argument that names what cannot be done here. The command says it in a line and ends with status 2."""


@dataclass(frozen=True)
class Source:
    """A file of points."""

    path: str
    num_points: int
    bytes: int
    scales: tuple[float, float, float]
    offsets: tuple[float, float, float]
    most: int = 255  # of a label

    @classmethod
    def of(cls, path: str | os.PathLike, field: str = "classification") -> Source:
        path = os.path.abspath(path)
        n, scales, offsets, most = _las.read_header(path, field)
        if n >= 2**32:
            raise ValueError(f"{path}: {n} points, expected less than 2^32")
        if not all(map(math.isfinite, (*scales, *offsets))) or 0 in scales:
            raise ValueError(f"{path}: scales are {scales} and offsets {offsets}, expected finite numbers, of scales not 0")
        return cls(path, n, os.path.getsize(path), scales, offsets, most)

    def metres(self, stored: np.ndarray) -> np.ndarray:
        xyz = np.empty(stored.shape)
        for axis in range(3):  # NumPy is slow along an axis of three
            np.multiply(stored[:, axis], self.scales[axis], out=xyz[:, axis])
            xyz[:, axis] += self.offsets[axis]
        return xyz


def _name(key: Key) -> str:
    return f"{key[0]}_{key[1]}"


def _key(name: str) -> Key:
    i, j = name.split("_")
    return int(i), int(j)


def _blocks(n: int):
    return (slice(begin, min(begin + BLOCK, n)) for begin in range(0, n, BLOCK))


def _by_cell(cells: np.ndarray) -> tuple[np.ndarray, list[tuple[Key, slice]]]:
    """An order of points by cell, in which those of a cell stay as they were, and where each cell's are in it; i32 [N, 2]."""
    low, most = ([int(f(cells[:, a])) for a in range(2)] for f in (np.min, np.max))
    size = [b - a + 1 for a, b in zip(low, most)]
    if size[0] * size[1] < 2**62:
        number = cells[:, 0] - np.int64(low[0])
        number *= size[1]
        number += cells[:, 1] - np.int64(low[1])
    else:
        number = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)
    if number.max() < 2**16:
        number = number.astype(np.uint16)  # NumPy sorts these by counting
    order = np.argsort(number, kind="stable")
    number = number[order]
    starts = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
    keys = cells[order[starts]].tolist()
    return order, [(tuple(key), slice(begin, end)) for key, begin, end in zip(keys, starts, [*starts[1:], len(number)])]


def _by_index(points: np.ndarray) -> np.ndarray:
    """Points of a file in its order."""
    index = points["index"]
    first, last = (int(index.min()), int(index.max())) if len(index) else (0, -1)
    if last - first >= 32 * len(index):
        return points.take(np.argsort(index, kind="stable"))
    # Places are told by how many come before, which takes less time than a sort. Those of a cell are in order already.
    index = index - np.uint32(first)
    there = np.zeros(last - first + 1, bool)
    there[index] = True
    place = np.cumsum(there, dtype=np.uint32)
    ordered = np.empty_like(points)
    ordered.view(BYTES)[place[index] - np.uint32(1)] = points.view(BYTES)
    return ordered


def arrays_of(n: int, empty: Callable) -> dict[str, np.ndarray]:
    """The arrays of a Tile of n points; empty: (shape, dtype) -> array."""
    return dict(
        xyz=empty((n, 3), np.float64), voxels=empty((n, 3), np.int32), index=empty(n, np.int64), source=empty(n, np.int32),
        intensity=empty(n, np.uint16), is_core=empty(n, np.bool_),
    )  # fmt: skip


def _write(path: Path, write: Callable) -> None:
    """A file that is there whole or not at all."""
    with _las.whole(path) as part, open(part, "wb") as f:
        write(f)


def said(key: Key, given: object) -> tuple:
    """What a function said of a tile: labels, and logits or None."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"tile {key}: the function gave {type(given).__name__}, expected two values: labels [N], and logits [N, C] or None")
    return tuple(given)


@dataclass(frozen=True)
class Job:
    """Files, the grid that they are cut by, and where the parts go. A value: it can be sent to any process."""

    out: str
    files: tuple[Source, ...]
    grid: Grid
    field: str = "classification"
    keep_logits: bool = False
    labels_by: str | None = None

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
        labels_by: str | None = None,
    ) -> Job:
        """A job, new or as it was left.

        Parameters
        ----------
        files : paths of LAS, LAZ and COPC files, whose copies have names of their own (a.copc.laz becomes a.laz)
        out : folder, made where it is not there; not that of the files
        voxel_m : m
        tile_m : m, a side of a tile; becomes a whole number of voxels, from 16 on a multiple of 4
        halo_voxels : how many voxels around a tile the network reads (spops.receptive_field_of)
        origin_m : m, lower corner of voxel 0
        field : dimension of the files that gets the labels
        keep_logits : True: parts have the logits too
        labels_by : what labels the tiles, in words: a job of another network does not go on with what this one left. None: whatever
            the job in the folder has

        Raises
        ------
        ValueError : files, numbers or a name that cannot be; a folder with another job, or with files that the job would write.
        OSError : a file that cannot be read, a folder that cannot be written.
        """
        if isinstance(files, (str, os.PathLike)) or not len(files):
            raise ValueError(f"Job: files is {files!r}, expected a list of one path or more")
        side = round(min(length(tile_m, "Job: tile_m") / length(voxel_m, "Job: voxel_m"), 2.0**62))
        grid = Grid(voxel_m, max(side if side < 16 else round(side / 4) * 4, 1), halo_voxels, tuple(map(float, origin_m)))
        job = cls(os.path.abspath(out), tuple(Source.of(f, field) for f in files), grid, field, keep_logits, labels_by)
        first: dict[str, int] = {}
        for i, source in enumerate(job.files):
            if (other := first.setdefault(job.target(i).name, i)) != i:
                raise ValueError(f"Job: files {job.files[other].path} and {source.path} have one name, {job.target(i).name}, expected a name for each")
        job._begin()
        return job

    def _begin(self) -> None:
        """The folder of the job, new or as it was left."""
        place, new = self._at("job.json"), json.loads(json.dumps({**asdict(self), "out": None}))
        if place.exists():
            try:
                old = json.loads(place.read_text())
            except ValueError:
                old = {}  # of nobody
            if self.labels_by is None:
                new["labels_by"] = old.get("labels_by")
            others = [name for name in new if old.get(name) != new[name]]
            if others:
                raise ValueError(f"Job: {place} says another job ({', '.join(others)}), expected the same one, or an empty folder")
        else:
            for i in range(len(self.files)):
                if self.is_written(i):
                    raise ValueError(f"Job: {self.target(i)} is there, and not by this job; expected an empty folder as out")
        for folder in ("cut", "parts", "tries"):
            self._at(folder).mkdir(parents=True, exist_ok=True)
        _write(place, lambda f: f.write(json.dumps(new, indent=1).encode()))

    def _at(self, *names: str) -> Path:
        return Path(self.out, *names)

    def _part(self, key: Key) -> Path:
        return self._at("parts", f"{_name(key)}.npz")

    # ---- Cut ------------------------------------------------------------------------------------

    def is_cut(self, file: int) -> bool:
        return self._at("cut", str(file)).exists()

    def cut(self, file: int) -> int:
        """Sort the points of a file by cell. Holds BUFFERED of them at a time. Returns how many there are."""
        source, folder = self.files[file], self._at("cut", f".{os.getpid()}.{file}")
        if self.is_cut(file):
            return source.num_points
        shutil.rmtree(folder, ignore_errors=True)  # of a try that failed
        folder.mkdir()
        waiting, held, done = {}, 0, 0
        for record in _las.chunks(source.path):
            points, cells = np.empty(len(record), POINT), np.empty((len(record), 2), np.int32)
            for axis, name in enumerate(("X", "Y", "Z")):
                points["xyz"][:, axis] = record[name]
            points["intensity"], points["index"] = record["intensity"], np.arange(done, done + len(record))
            for block in _blocks(len(record)):
                cells[block] = self.grid.cells(self.grid.voxels(source.metres(points["xyz"][block]), done + block.start))
            done += len(record)
            order, places = _by_cell(cells)
            points = points.take(order)
            for key, place in places:
                waiting.setdefault(key, []).append(points[place])
            held += len(points)
            if held >= BUFFERED:
                self._flush(folder, waiting)
                held = 0
        self._flush(folder, waiting)
        if done != source.num_points:
            raise ValueError(f"{source.path}: {done} points, expected the {source.num_points} of its header")
        os.rename(folder, self._at("cut", str(file)))
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

    def _must_be_cut(self, file: int) -> None:
        if not self.is_cut(file):
            raise ValueError(f"Job: {self.files[file].path} is not cut, expected all files to be: Job.cut")

    def tiles_of(self, file: int) -> list[Key]:
        """Tiles that have points of a file, once it is cut."""
        self._must_be_cut(file)
        return sorted({self.grid.tile_of(_key(p.stem)) for p in self._at("cut", str(file)).glob("*.bin")})

    # ---- Label ----------------------------------------------------------------------------------

    def is_labelled(self, key: Key) -> bool:
        return self._part(key).exists()

    def points_at_most(self, keys: Sequence[Key]) -> int:
        """More points none of these tiles reads; that many are in the cells around one."""
        points: dict[Key, int] = {}
        for number in range(len(self.files)):
            for entry in os.scandir(self._at("cut", str(number))):
                if entry.name.endswith(".bin"):
                    cell = _key(entry.name[: -len(".bin")])
                    points[cell] = points.get(cell, 0) + entry.stat().st_size // POINT.itemsize
        return max((sum(points.get(cell, 0) for cell in self.grid.cells_of(key, points)) for key in keys), default=0)

    def load(self, key: Key, empty: Callable = np.empty) -> Tile:
        """The points of a tile and of its halo; empty: (shape, dtype) -> array, which makes the arrays."""
        found = [self._points(key, number) for number in range(len(self.files))]
        tile = Tile(key, self.grid, **arrays_of(sum(map(len, found)), empty))
        done = 0
        for number, source in enumerate(self.files):
            points, found[number] = found[number], None
            for block in _blocks(len(points)):
                to = slice(done, done + block.stop - block.start)
                tile.xyz[to] = source.metres(points["xyz"][block])
                tile.voxels[to] = self.grid.voxels(tile.xyz[to])
                tile.intensity[to], tile.source[to], tile.index[to] = points["intensity"][block], number, points["index"][block]
                tile.is_core[to] = self.grid.is_core(key, tile.voxels[to])
                done = to.stop
        return tile

    def _points(self, key: Key, file: int) -> np.ndarray:
        """The points of a file that a tile reads, in the order of the file."""
        self._must_be_cut(file)
        folder, found = self._at("cut", str(file)), []
        cells = self.grid.cells_of(key, None if self.grid.num_cells_of(key) <= FEW_CELLS else [_key(p.stem) for p in folder.glob("*.bin")])
        for cell in cells:
            path = folder / f"{_name(cell)}.bin"
            if not path.exists():
                continue
            points = np.fromfile(path, POINT)
            if not self.grid.reads_all_of(key, cell):
                read = np.empty(len(points), bool)
                for block in _blocks(len(points)):
                    read[block] = self.grid.is_read(key, self.grid.voxels(self.files[file].metres(points["xyz"][block])))
                points = points.compress(read)
            found.append(points.view(BYTES))
        return _by_index(np.concatenate(found).view(POINT)) if found else np.empty(0, POINT)

    def keep(self, tile: Tile, labels: np.ndarray, logits: np.ndarray | None = None) -> None:
        """Keep what was said of a tile: labels [N], whole numbers, and logits [N, C] of all its points, of which the core counts."""
        core, labels = tile.is_core, np.asarray(labels)
        if labels.shape != (len(tile),):
            raise ValueError(f"tile {tile.key}: labels have shape {list(labels.shape)}, expected [{len(tile)}]")
        ends = np.searchsorted(tile.source[core], np.arange(len(self.files) + 1, dtype=np.int32))  # points of a tile lie by file
        counts = np.diff(ends)
        files = np.flatnonzero(counts).astype(np.int32)
        counts = counts[files]
        most = min((self.files[f].most for f in files), default=255)
        bad = core & ~((labels >= 0) & (labels <= most) & (labels == np.floor(labels)))
        if bad.any():
            i = int(bad.argmax())
            raise ValueError(f"tile {tile.key}: labels[{i}] is {labels[i]}, expected a whole number from 0 to {most} for {self.field}")
        more = {}
        if logits is not None and self.keep_logits:
            logits = np.asarray(logits)
            if logits.ndim != 2 or len(logits) != len(tile):
                raise ValueError(f"tile {tile.key}: logits have shape {list(logits.shape)}, expected [{len(tile)}, classes]")
            more = dict(logits=logits[core])
        index = tile.index[core].astype(np.uint32)
        _write(self._part(tile.key), lambda f: np.savez(f, files=files, counts=counts, index=index, labels=labels[core].astype(np.uint8), **more))

    def label(self, key: Key, function: Callable[[Tile], tuple], tile: Tile | None = None) -> int:
        """Label a tile that is not yet; function: Tile -> labels [N], and logits [N, C] or None. Returns points of the core."""
        if self.is_labelled(key):
            return 0
        tile = self.load(key) if tile is None else tile
        self.keep(tile, *said(key, function(tile)))
        return int(tile.is_core.sum())

    def begin(self, part: Key | str) -> int:
        """Count a try of a tile, or of what has this name, also one that takes its process down. Returns how many there were before."""
        place = self._at("tries", part if isinstance(part, str) else _name(part))
        tries = int(place.read_text()) if place.exists() else 0
        _write(place, lambda f: f.write(str(tries + 1).encode()))
        return tries

    @contextlib.contextmanager
    def alone(self):
        """No other process does all of the job meanwhile. What was half written when a process ended goes; tries are forgotten in the
        end, so that those of a process that was killed count in the next one."""
        with open(self._at("lock"), "w", encoding="ascii") as lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"Job: another process works in {self.out}") from None
            except (ImportError, OSError):
                pass  # a file system, or a system, without
            for folder in self._at("cut").glob(".*"):
                shutil.rmtree(folder, ignore_errors=True)
            for p in (*self._at("parts").glob(".*.npz"), *self._at().glob(".*.la[sz]")):
                p.unlink(missing_ok=True)
            try:
                yield
            finally:
                for p in self._at("tries").iterdir():
                    p.unlink(missing_ok=True)

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
