# SPDX-License-Identifier: Apache-2.0
"""Points of LAS, LAZ and COPC files, some at a time, and copies of the files with other labels.

COPC files are LAZ files whose points lie in the order of an octree, and are read as such: every point once.
"""
from __future__ import annotations

import contextlib
import copy
import os
from pathlib import Path

import numpy as np

CHUNK = 1_000_000  # points at a time


@contextlib.contextmanager
def whole(path: Path):
    """Where to write a file that is then there whole; after an error nothing is."""
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _laspy():
    try:
        import laspy
    except ImportError as error:
        raise ImportError("spops.tiles reads files with laspy and lazrs: pip install 'spops[tiles]'") from error
    return laspy


def open_las(path: str, *more, **named):
    """laspy.open, whose errors name the file."""
    laspy = _laspy()
    try:
        return laspy.open(path, *more, **named)
    except OSError:
        raise  # has the path
    except Exception as error:
        raise ValueError(f"{path}: {error}") from error


def read_header(path: str, name: str) -> tuple[int, tuple, tuple, int]:
    """How many points there are, the scales and offsets of their coordinates, and the largest label that a dimension can have."""
    with open_las(path) as f:
        h = f.header
        if h.are_points_compressed and h.point_format.id in (9, 10):  # lazrs 0.8 gives other offsets of packets than it was given
            raise ValueError(f"{path}: point format {h.point_format.id} of LAZ has wave packets, which a copy would not keep; expected it as LAS")
        return int(h.point_count), tuple(map(float, h.scales)), tuple(map(float, h.offsets)), _most_of(path, h.point_format, name)


def _most_of(path: str, form, name: str) -> int:
    """The largest label that a dimension of a file can have; one that is not there is added, as u8."""
    if not 1 <= len(name.encode()) <= 32:
        raise ValueError(f"field is {name!r}, expected a name of 1 to 32 bytes")
    if name.lower() in ("x", "y", "z"):
        raise ValueError(f"field is {name!r}, the coordinates of points, expected another dimension")
    if name not in form.dimension_names:
        return 255
    dimension = form.dimension_by_name(name)
    if dimension.num_elements != 1:
        raise ValueError(f"{path}: field {name} has {dimension.num_elements} numbers a point, expected 1")
    if dimension.scales is not None:
        raise ValueError(f"{path}: field {name} has a scale, expected a dimension of whole numbers")
    return int(min(dimension.max, 255))


def chunks(path: str, size: int = CHUNK):
    """Points as the file has them: an array of a structure, whose X, Y and Z are i32 and whose intensity is u16."""
    laspy = _laspy()
    wanted = laspy.DecompressionSelection.base() | laspy.DecompressionSelection.Z | laspy.DecompressionSelection.INTENSITY
    with open_las(path, decompression_selection=wanted) as f:
        for points in f.chunk_iterator(size):
            yield points.array


def write_labels(path: str, to: Path, labels: np.ndarray, name: str) -> None:
    """A copy of a file whose dimension `name` has these labels; it is there whole, or not at all."""
    laspy = _laspy()
    from laspy.vlrs.vlrlist import VLRList

    with open_las(path) as f, whole(to) as part:
        header = copy.deepcopy(f.header)  # the reader needs its own as it is
        header.vlrs = VLRList([v for v in header.vlrs if v.user_id != "copc"])  # places of nodes, which are others now
        header.evlrs = VLRList([v for v in header.evlrs or [] if v.user_id != "copc"])
        if name not in header.point_format.dimension_names:
            header.add_extra_dim(laspy.ExtraBytesParams(name=name, type=np.uint8))
        most = _most_of(path, header.point_format, name)
        if len(labels) != header.point_count or len(labels) and labels.max() > most:
            raise ValueError(f"{path}: {len(labels)} labels up to {labels.max(initial=0)}, expected {header.point_count} up to {most} of {name}")
        with laspy.open(part, "w", header=header, do_compress=to.suffix.lower() == ".laz") as out:
            done = 0
            for points in f.chunk_iterator(CHUNK):
                record = points
                if points.point_format != header.point_format or not points.array.flags.writeable:
                    record = laspy.ScaleAwarePointRecord.zeros(len(points), header=header)
                    for field in points.array.dtype.names:  # whole bytes: dimensions of a few bits are parts of them
                        record.array[field] = points.array[field]
                record[name] = labels[done : done + len(points)]
                out.write_points(record)
                done += len(points)
            if len(header.evlrs):
                out.write_evlrs(header.evlrs)
