# SPDX-License-Identifier: Apache-2.0
"""Points of LAS, LAZ and COPC files, some at a time, and copies of the files with other labels.

COPC files are LAZ files whose points lie in the order of an octree, and are read as such: every point once.
"""
from __future__ import annotations

import copy
import os
from pathlib import Path

import numpy as np

CHUNK = 1_000_000  # points at a time


def _laspy():
    try:
        import laspy
    except ImportError as error:
        raise ImportError("spops.tiles reads files with laspy and lazrs: pip install 'spops[tiles]'") from error
    return laspy


def num_points(path: str) -> int:
    with _laspy().open(path) as f:
        return int(f.header.point_count)


def read_header(path: str) -> tuple[int, tuple, tuple]:
    """How many points there are, and the scales and offsets of their coordinates."""
    with _laspy().open(path) as f:
        return int(f.header.point_count), tuple(map(float, f.header.scales)), tuple(map(float, f.header.offsets))


def chunks(path: str, size: int = CHUNK):
    """Points as the file has them: an array of a structure, whose X, Y and Z are i32 and whose intensity is u16."""
    laspy = _laspy()
    wanted = laspy.DecompressionSelection.base() | laspy.DecompressionSelection.Z | laspy.DecompressionSelection.INTENSITY
    with laspy.open(path, decompression_selection=wanted) as f:
        for points in f.chunk_iterator(size):
            yield points.array


def write_labels(path: str, to: Path, labels: np.ndarray, name: str) -> None:
    """A copy of a file whose dimension `name` has these labels; it is there whole, or not at all."""
    laspy = _laspy()
    from laspy.vlrs.vlrlist import VLRList

    part = to.with_name(f".{os.getpid()}.{to.name}")
    with laspy.open(path) as f:
        header = copy.deepcopy(f.header)  # the reader needs its own as it is
        header.vlrs = VLRList([v for v in header.vlrs if v.user_id != "copc"])  # places of nodes, which are others now
        header.evlrs = VLRList([v for v in header.evlrs or [] if v.user_id != "copc"])
        if name not in header.point_format.dimension_names:
            header.add_extra_dim(laspy.ExtraBytesParams(name=name, type=np.uint8))
        least, most = 0, 31 if name == "classification" and header.point_format.id < 6 else 255
        if len(labels) and not (least <= labels.min() and labels.max() <= most):
            raise ValueError(f"{path}: labels are {labels.min()} to {labels.max()}, expected {least} to {most} of {name}")
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
    os.replace(part, to)
