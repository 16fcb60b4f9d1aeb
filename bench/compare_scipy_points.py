#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the search of neighbours within a radius on the CPU beside scipy.spatial.cKDTree.

Both find the neighbours of every point of a cloud, from the array of points on: the library cells and
lists with taps, scipy its tree and its lists. The lists are compared: they may differ in pairs whose
distance is the radius up to rounding, as the library compares in f32 and scipy in f64. One JSON object
is printed.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
from pathlib import Path

import numpy as np
import scipy
import scipy.spatial
from compare_scipy import Library, Matrix, aligned, matrix, time_us

TAPS, TAP_SIZE_M = 3, 0.02


class PointCloud(ctypes.Structure):
    _fields_ = [
        ("points", Matrix),
        ("offsets", ctypes.c_void_p),
        ("num_samples", ctypes.c_int64),
    ]


class NeighborsOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("radius_m", ctypes.c_float),
        ("metric", ctypes.c_int),
        ("taps", ctypes.c_int32),
        ("tap_size_m", ctypes.c_float),
        ("contents", ctypes.c_int32),
    ]


class NeighborLists(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("max_rows", ctypes.c_int64),
        ("num_rows", ctypes.POINTER(ctypes.c_int32)),
        ("offsets", ctypes.POINTER(ctypes.c_int32)),
        ("rows", ctypes.POINTER(ctypes.c_int32)),
        ("taps", ctypes.POINTER(ctypes.c_uint16)),
    ]


class NeighborsView(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_taps", ctypes.c_int32),
        ("mirrored", ctypes.c_int32),
        ("max_pairs", ctypes.c_int64),
        ("out", ctypes.POINTER(NeighborLists)),
        ("in_", ctypes.POINTER(NeighborLists)),
        ("tap_offsets", ctypes.c_void_p),
        ("in_rows", ctypes.c_void_p),
        ("out_rows", ctypes.c_void_p),
    ]


def find(library, points, radius_m):
    cloud = PointCloud(points=matrix(points))
    options = NeighborsOptions(
        struct_size=ctypes.sizeof(NeighborsOptions),
        radius_m=radius_m,
        taps=TAPS,
        tap_size_m=TAP_SIZE_M,
    )
    neighbors = ctypes.c_void_p()
    library.call(
        "spops_neighbors_create",
        library.ctx,
        None,
        ctypes.byref(cloud),
        ctypes.byref(options),
        ctypes.byref(neighbors),
    )
    return neighbors


def lists_of(library, neighbors, num_points):
    """The rows of every point's list, in ascending order, and where each list begins."""
    view = NeighborsView(struct_size=ctypes.sizeof(NeighborsView))
    library.call("spops_neighbors_get_view", library.ctx, neighbors, ctypes.byref(view))
    lists = view.out.contents
    offsets = np.ctypeslib.as_array(lists.offsets, (num_points + 1,)).copy()
    rows = np.ctypeslib.as_array(lists.rows, (view.max_pairs,)).copy()
    return offsets, rows


def pairs_of(points, offsets, rows):
    centres = np.repeat(np.arange(len(points), dtype=np.int64), np.diff(offsets))
    return np.sort(centres * len(points) + rows)


def main():
    data = os.environ.get("SPOPS_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="path of libspops.so")
    parser.add_argument("--points", default=Path(data) / "points_200000.npy", help="[N, 3] f32")
    parser.add_argument("--radius", type=float, default=0.03722, help="m (default 0.03722)")
    parser.add_argument("--threads", type=int, default=2, help="of both (default 2)")
    parser.add_argument("--samples", type=int, default=15, help="timed runs of each (default 15)")
    args = parser.parse_args()
    if not Path(args.points).exists():
        sys.exit(f"{args.points} is absent: set SPOPS_TEST_DATA or give --points")

    points = aligned(np.load(args.points).astype(np.float32))
    radius_m = float(np.float32(args.radius))
    library = Library(args.library, args.threads)
    device = library.device()

    # Lists are the same, but for pairs at the radius.
    neighbors = find(library, points, radius_m)
    ours = pairs_of(points, *lists_of(library, neighbors, len(points)))
    library.lib.spops_neighbors_destroy(neighbors)
    lists = scipy.spatial.cKDTree(points).query_ball_point(points, radius_m, workers=args.threads)
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in lists])])
    theirs = pairs_of(points, offsets, np.concatenate([np.array(rows, np.int64) for rows in lists]))
    differ = np.setxor1d(ours, theirs, assume_unique=True)
    apart = points[differ // len(points)].astype(np.float64) - points[differ % len(points)]
    if (np.abs(np.linalg.norm(apart, axis=1) - radius_m) > 1e-6 * radius_m).any():
        sys.exit("a pair is missing that is not at the radius")
    del lists

    tree = scipy.spatial.cKDTree(points)

    def run_library():
        library.lib.spops_neighbors_destroy(find(library, points, radius_m))

    def run_tree():
        scipy.spatial.cKDTree(points)

    def run_scipy():
        tree.query_ball_point(points, radius_m, workers=args.threads)

    def run_counts():
        tree.query_ball_point(points, radius_m, workers=args.threads, return_length=True)

    runs = {"libspops": run_library, "tree": run_tree, "lists": run_scipy, "counts": run_counts}
    samples = {name: [] for name in runs}
    for _ in range(args.samples):  # in turns, so that all meet the same machine
        for name, run in runs.items():
            samples[name].append(time_us(run))
    library.lib.spops_context_destroy(library.ctx)

    median = {name: statistics.median(times) for name, times in samples.items()}
    scipy_us = median["tree"] + median["lists"]
    print(
        json.dumps(
            {
                "bench": "compare_scipy_points",
                "points": Path(args.points).name,
                "radius_m": args.radius,
                "processor": device.name.decode(),
                "isa": device.isa.decode(),
                "threads": args.threads,
                "scipy_version": scipy.__version__,
                "pairs": len(ours),
                "pairs_at_radius": len(differ),
                "samples": args.samples,
                "libspops_median_us": round(median["libspops"], 1),
                "scipy_tree_median_us": round(median["tree"], 1),
                "scipy_lists_median_us": round(median["lists"], 1),
                "scipy_counts_median_us": round(median["counts"], 1),
                "ratio": round(scipy_us / median["libspops"], 2),
                "ratio_lists": round(median["lists"] / median["libspops"], 2),
                "ratio_counts": round(median["counts"] / median["libspops"], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
