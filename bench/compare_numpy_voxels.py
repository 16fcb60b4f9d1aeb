#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time voxels and the means of their points on the CPU beside NumPy.

NumPy packs the voxel of each point into a key, sorts the keys, and has the same results from the sorted
points: voxels, means of every column, and the voxel of each point. Its sorts are tried in turn, the
fastest counts, and each step is as fast as NumPy offers it. np.unique with np.bincount, as one writes
it first, is timed too. Results are compared. One JSON object is printed for each file and order.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from compare_scipy import Library, Matrix

ORDERS = ["given", "lexicographic", "morton", "hilbert"]
SORTS = ["quicksort", "stable", "words"]
REDUCE_MEAN, MAX_DIMS = 1, 4
CALLS = 9  # in a row, of each


class CoordsOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("order", ctypes.c_int),
        ("search", ctypes.c_int),
        ("duplicates", ctypes.c_int),
        ("reserved", ctypes.c_int32),
        ("box", ctypes.c_void_p),
        ("max_grid_bytes", ctypes.c_size_t),
        ("memory", ctypes.c_void_p),
    ]


class VoxelsOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("size_m", ctypes.c_double * MAX_DIMS),
        ("origin_m", ctypes.c_double * MAX_DIMS),
        ("coords", ctypes.POINTER(CoordsOptions)),
        ("points", ctypes.c_int),
        ("gradients", ctypes.c_int),
        ("max_cols", ctypes.c_int64),
        ("memory", ctypes.c_void_p),
        ("dims", ctypes.c_int32),
        ("crop", ctypes.c_int32),
        ("lower_m", ctypes.c_double * MAX_DIMS),
        ("upper_m", ctypes.c_double * MAX_DIMS),
        ("seed", ctypes.c_uint32),
        ("reserved", ctypes.c_int32),
    ]


class CoordsView(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("dims", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("max_rows", ctypes.c_int64),
        ("num_rows", ctypes.c_void_p),
        ("rows", ctypes.POINTER(ctypes.c_int32)),
        ("row_item", ctypes.c_void_p),
        ("item_row", ctypes.POINTER(ctypes.c_int32)),
        ("max_items", ctypes.c_int64),
    ]


def numpy_unique(points, size_m):
    voxels = np.floor(points[:, :3].astype(np.float64) / size_m).astype(np.int64)
    lower = voxels.min(axis=0)
    extent = voxels.max(axis=0) - lower + 1
    key = np.ravel_multi_index((voxels - lower).T, extent)
    key, point_row, count = np.unique(key, return_inverse=True, return_counts=True)
    means = np.stack([np.bincount(point_row, column) for column in points.T], axis=1)
    means /= count[:, None]
    rows = np.zeros((len(key), 4), np.int32)
    rows[:, 1:] = np.stack(np.unravel_index(key, extent), axis=1) + lower
    return rows, means.astype(np.float32), point_row


def numpy_voxels(points, size_m, sort):
    n = len(points)
    columns, lower, bits = [], [], []
    for axis in range(3):
        column = np.floor(points[:, axis].astype(np.float64) / size_m).astype(np.int32)
        lower.append(int(column.min()))
        bits.append((int(column.max()) - lower[-1]).bit_length())
        column -= lower[-1]
        columns.append(column)
    key = columns[0].astype(np.int64)
    for axis in (1, 2):
        key <<= bits[axis]
        key |= columns[axis]
    if sort == "words":  # the point's number below its key
        number_bits = (n - 1).bit_length()
        key <<= number_bits
        key |= np.arange(n)
        key.sort()
        order = key & ((1 << number_bits) - 1)
        key >>= number_bits
    else:
        order = np.argsort(key, kind=sort)
        key = np.take(key, order)
    head = np.empty(n, bool)
    head[0] = True
    np.not_equal(key[1:], key[:-1], out=head[1:])
    start = np.flatnonzero(head)
    means = np.add.reduceat(np.take(points, order, axis=0), start, axis=0)
    means /= np.diff(np.append(start, n))[:, None].astype(np.float32)
    rank = np.cumsum(head, dtype=np.int32)
    rank -= 1
    point_row = np.empty(n, np.int32)
    point_row[order] = rank
    key = np.take(key, start)
    rows = np.zeros((len(start), 4), np.int32)
    for axis in (2, 1, 0):
        rows[:, axis + 1] = (key & ((1 << bits[axis]) - 1)) + lower[axis]
        key >>= bits[axis]
    return rows, means, point_row


class Voxels:
    """Voxels and means by the library; keeps the arrays of the last call."""

    def __init__(self, library, points, size_m, order):
        self.library, self.num_points = library, len(points)
        self.means = np.empty_like(points)
        self.points = Matrix(points.ctypes.data, *points.shape, points.shape[1], 0)
        self.coords = CoordsOptions(ctypes.sizeof(CoordsOptions), order)
        self.options = VoxelsOptions(ctypes.sizeof(VoxelsOptions), dims=3)
        self.options.max_cols = points.shape[1]
        self.options.coords = ctypes.pointer(self.coords)
        for axis in range(3):
            self.options.size_m[axis] = size_m

    def run(self, check=None):
        plan, view = ctypes.c_void_p(), CoordsView(ctypes.sizeof(CoordsView))
        out = Matrix(self.means.ctypes.data, 0, self.means.shape[1], self.means.shape[1], 0)
        c, ctx = self.library, self.library.ctx
        c.call("spops_voxels_create", ctx, self.points, None, ctypes.byref(self.options), ctypes.byref(plan))
        coords = ctypes.c_void_p(c.lib.spops_voxels_coords(plan))
        c.call("spops_coords_get_view", ctx, coords, ctypes.byref(view))
        out.rows = view.max_rows
        segments = ctypes.c_void_p(c.lib.spops_voxels_segments(plan))
        c.call("spops_segreduce_execute", ctx, segments, REDUCE_MEAN, self.points, None, out, None)
        if check is not None:
            rows = np.ctypeslib.as_array(view.rows, (view.max_rows, 4))
            check(rows, self.means[: view.max_rows],
                  np.ctypeslib.as_array(view.item_row, (self.num_points,)))
        c.lib.spops_voxels_destroy(plan)


def times_ms(function):
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def compare(expected, name):
    def check(rows, means, point_row):
        sorted_rows, sorted_means, sorted_point_row = expected
        same = len(rows) == len(sorted_rows) and np.array_equal(
            rows[point_row], sorted_rows[sorted_point_row])
        same = same and np.allclose(means[point_row], sorted_means[sorted_point_row], 1e-5, 1e-5)
        if not same:
            sys.exit("%s: the results differ" % name)

    return check


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="path of libspops.so")
    parser.add_argument("files", nargs="+", help="scans: .npy, columns x, y, z and any more")
    parser.add_argument("--size", type=float, default=0.05, help="of a voxel, m (default 0.05)")
    parser.add_argument("--threads", type=int, default=2, help="of the library (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of %d calls each (default 3)" % CALLS)
    args = parser.parse_args()
    library = Library(args.library, args.threads)
    for name in ("spops_voxels_coords", "spops_voxels_segments"):
        getattr(library.lib, name).restype = ctypes.c_void_p

    for file in args.files:
        points = np.ascontiguousarray(np.load(file), np.float32)
        expected = numpy_voxels(points, args.size, "stable")
        compare(expected, "%s, np.unique" % file)(*numpy_unique(points, args.size))
        unique = []
        runs = [Voxels(library, points, args.size, order) for order in range(len(ORDERS))]
        ours, theirs = [[] for _ in ORDERS], {sort: [] for sort in SORTS}
        for run, order in zip(runs, ORDERS):
            run.run(compare(expected, "%s, %s" % (file, order)))
        for _ in range(args.rounds):  # in turns, so that both meet what else the machine does
            for sort in SORTS:
                theirs[sort] += times_ms(lambda: numpy_voxels(points, args.size, sort))
            for run, times in zip(runs, ours):
                times += times_ms(run.run)
            unique += times_ms(lambda: numpy_unique(points, args.size))
        medians = {sort: statistics.median(times) for sort, times in theirs.items()}
        best = min(medians, key=medians.get)
        for order, times in zip(ORDERS, ours):
            median = statistics.median(times)
            print(json.dumps({
                "device": library.device().name.decode(), "isa": library.device().isa.decode(), "threads": args.threads, "scan": Path(file).stem,
                "points": len(points), "voxels": len(expected[0]), "size_m": args.size,
                "order": order, "median_ms": round(median, 4), "min_ms": round(min(times), 4),
                "numpy": np.__version__, "numpy_sort": best,
                "numpy_median_ms": round(medians[best], 4),
                "numpy_min_ms": round(min(min(t) for t in theirs.values()), 4),
                "unique_median_ms": round(statistics.median(unique), 4),
                "unique_min_ms": round(min(unique), 4),
                "speedup": round(medians[best] / median, 2)}), flush=True)


if __name__ == "__main__":
    main()
