#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time BEV pooling on the CPU beside scipy's sparse matrix product, on the same map.

The map comes from a camera rig (JSON) with BEVDet's sizes: six cameras, feature map 16 x 44, 59 depth
bins, a grid of 128 x 128 cells of 0.8 m. scipy multiplies a CSR matrix, whose data are the depth values
gathered beforehand, with the features; the library reads the depth values through its plan. Both results
are compared within the bound of f32 sums. One JSON object is printed: both medians, and their ratio.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

try:
    import scipy.sparse
except ImportError:  # scripts that import this one for the library need none
    scipy = None

FEATURE_HEIGHT, FEATURE_WIDTH = 16, 44
INPUT_HEIGHT, INPUT_WIDTH = 256, 704
RESIZE, CROP_X_PX, CROP_Y_PX = 0.48, 32, 176
DEPTHS_M = np.arange(1.0, 60.0)
GRID_LOWER_M = np.array([-51.2, -51.2, -5.0])
CELL_SIZE_M = np.array([0.8, 0.8, 8.0])
NUM_CELLS = np.array([128, 128, 1])

BACKEND_CPU, DTYPE_F32, CHANNELS_LAST = 1, 0, 0


class ContextOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_int),
        ("device", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p * 5),
    ]


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("dtype", ctypes.c_int),
    ]


class BevShape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "num_batches num_cameras num_depths feature_height feature_width"
            " num_cells_x num_cells_y num_cells_z"
        ).split()
    ]


class BevRanks(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_points", ctypes.c_int64),
        ("num_intervals", ctypes.c_int64),
        ("ranks_depth", ctypes.c_void_p),
        ("ranks_feat", ctypes.c_void_p),
        ("ranks_bev", ctypes.c_void_p),
        ("interval_starts", ctypes.c_void_p),
        ("interval_lengths", ctypes.c_void_p),
    ]


class BevOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("max_cols", ctypes.c_int64),
        ("backward", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class BevpoolArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("layout", ctypes.c_int),
        ("accumulate", ctypes.c_int),
        ("depth", Matrix),
        ("feat", Matrix),
        ("out", Matrix),
        ("feat_scales", ctypes.c_void_p),
        ("feat_scale", ctypes.c_void_p),
        ("depth_scale", ctypes.c_void_p),
        ("out_scale", ctypes.c_void_p),
    ]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_int),
        ("name", ctypes.c_char * 128),
        ("isa", ctypes.c_char * 32),
        ("device", ctypes.c_int32),
        ("compute_capability", ctypes.c_int32),
        ("num_processors", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("cache_bytes", ctypes.c_int64),
        ("memory_bytes", ctypes.c_int64),
    ]


def matrix(array):
    """A view of a two-dimensional f32 array."""
    return Matrix(array.ctypes.data, array.shape[0], array.shape[1], array.shape[1], DTYPE_F32)


def aligned(values):
    """The same values where the library's own allocations would begin, at a multiple of 256 bytes."""
    memory = np.empty(values.nbytes + 256, np.uint8)
    begin = -memory.ctypes.data % 256
    copy = memory[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def build_ranks(rig_path):
    """Depth element, pixel row and cell of every point inside the grid, ordered by cell, and the number
    of cameras."""
    rig = json.loads(Path(rig_path).read_text())
    lidar_to_ego = np.array(rig["lidar2ego"])
    u_px = np.linspace(0, INPUT_WIDTH - 1, FEATURE_WIDTH)
    v_px = np.linspace(0, INPUT_HEIGHT - 1, FEATURE_HEIGHT)
    depth, v, u = np.meshgrid(DEPTHS_M, v_px, u_px, indexing="ij")
    pixels = np.stack(
        [(u + CROP_X_PX) / RESIZE * depth, (v + CROP_Y_PX) / RESIZE * depth, depth], axis=-1
    ).reshape(-1, 3)
    cells = []
    for camera in rig["cameras"]:
        camera_to_ego = lidar_to_ego @ np.array(camera["cam2lidar"])
        points = pixels @ np.linalg.inv(np.array(camera["intrinsics"])).T
        points = points @ camera_to_ego[:3, :3].T + camera_to_ego[:3, 3]
        index = np.floor((points - GRID_LOWER_M) / CELL_SIZE_M).astype(np.int64)
        inside = ((index >= 0) & (index < NUM_CELLS)).all(axis=1)
        cells.append(np.where(inside, index[:, 1] * NUM_CELLS[0] + index[:, 0], -1))
    cell = np.concatenate(cells)
    ranks_depth = np.nonzero(cell >= 0)[0]
    ranks_depth = ranks_depth[np.argsort(cell[ranks_depth], kind="stable")]
    ranks_bev = cell[ranks_depth]
    area = FEATURE_HEIGHT * FEATURE_WIDTH
    ranks_feat = ranks_depth // (len(DEPTHS_M) * area) * area + ranks_depth % area
    as_int32 = [np.ascontiguousarray(a, np.int32) for a in (ranks_depth, ranks_feat, ranks_bev)]
    return (*as_int32, len(rig["cameras"]))


class Library:
    """The few calls of libspops that pooling takes."""

    def __init__(self, path, num_threads):
        self.lib = ctypes.CDLL(str(path))
        self.lib.spops_last_error.restype = ctypes.c_char_p
        self.lib.spops_last_error.argtypes = [ctypes.c_void_p]
        self.ctx = ctypes.c_void_p()
        options = ContextOptions(
            struct_size=ctypes.sizeof(ContextOptions), backend=BACKEND_CPU, num_threads=num_threads
        )
        self.call("spops_context_create", ctypes.byref(options), ctypes.byref(self.ctx))

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status != 0:
            sys.exit(f"{name}: status {status}: {self.lib.spops_last_error(self.ctx).decode()}")

    def device(self):
        info = DeviceInfo(struct_size=ctypes.sizeof(DeviceInfo))
        self.call("spops_context_get_device_info", self.ctx, ctypes.byref(info))
        return info

    def plan(self, num_cameras, ranks_depth, ranks_feat, ranks_bev, num_cols):
        shape = BevShape(
            1, num_cameras, len(DEPTHS_M), FEATURE_HEIGHT, FEATURE_WIDTH, *map(int, NUM_CELLS)
        )
        starts = np.flatnonzero(np.diff(ranks_bev, prepend=-1)).astype(np.int32)
        lengths = np.diff(starts, append=len(ranks_bev)).astype(np.int32)
        arrays = (ranks_depth, ranks_feat, ranks_bev, starts, lengths)
        ranks = BevRanks(
            ctypes.sizeof(BevRanks), len(ranks_bev), len(starts), *(a.ctypes.data for a in arrays)
        )
        options = BevOptions(struct_size=ctypes.sizeof(BevOptions), max_cols=num_cols)
        plan = ctypes.c_void_p()
        self.call(
            "spops_bev_plan_create_from_ranks",
            self.ctx,
            ctypes.byref(shape),
            ctypes.byref(ranks),
            ctypes.byref(options),
            ctypes.byref(plan),
        )
        return plan

    def pool(self, plan, depth, features, out):
        args = BevpoolArgs(
            struct_size=ctypes.sizeof(BevpoolArgs),
            layout=CHANNELS_LAST,
            depth=depth,
            feat=features,
            out=out,
        )
        self.call("spops_bevpool_execute", self.ctx, plan, ctypes.byref(args))


def time_us(function):
    begin = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - begin) / 1e3


def main():
    data = os.environ.get("SPOPS_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="path of libspops.so")
    parser.add_argument("--rig", default=Path(data) / "nuscenes_a.json", help="camera rig, JSON")
    parser.add_argument("--cols", type=int, default=80, help="channels (default 80)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the library (default 2)")
    parser.add_argument("--samples", type=int, default=101, help="timed runs of each (default 101)")
    args = parser.parse_args()
    if not Path(args.rig).exists():
        sys.exit(f"{args.rig} is absent: set SPOPS_TEST_DATA or give --rig")

    ranks_depth, ranks_feat, ranks_bev, num_cameras = build_ranks(args.rig)
    num_cells = int(NUM_CELLS.prod())
    num_pixels = num_cameras * FEATURE_HEIGHT * FEATURE_WIDTH
    rng = np.random.default_rng(1)
    depth = aligned(rng.random((num_pixels * len(DEPTHS_M), 1), np.float32))
    features = aligned(rng.standard_normal((num_pixels, args.cols), np.float32))
    out = aligned(np.full((num_cells, args.cols), np.nan, np.float32))

    offsets = np.searchsorted(ranks_bev, np.arange(num_cells + 1)).astype(np.int32)
    values = depth[ranks_depth, 0]
    csr = scipy.sparse.csr_matrix((values, ranks_feat, offsets), shape=(num_cells, num_pixels))

    library = Library(args.library, args.threads)
    device = library.device()
    plan = library.plan(num_cameras, ranks_depth, ranks_feat, ranks_bev, args.cols)
    views = matrix(depth), matrix(features), matrix(out)

    def run_library():
        library.pool(plan, *views)

    def run_scipy():
        return csr @ features

    # Both sum the same terms, each in f32: they differ by at most one rounding per term and result.
    run_library()
    exact = csr.astype(np.float64) @ features.astype(np.float64)
    magnitude = abs(csr).astype(np.float64) @ np.abs(features).astype(np.float64)
    bound = (np.diff(offsets)[:, None] + 2) * 2.0**-24 * magnitude
    for name, result in (("libspops", out), ("scipy", run_scipy())):
        if not (np.abs(result - exact) <= bound).all():
            sys.exit(f"{name}: an error exceeds the bound of an f32 sum")

    samples = {"libspops": [], "scipy": []}
    for _ in range(args.samples):  # in turns, so that both meet the same machine; each warmed up
        run_scipy()
        samples["scipy"].append(time_us(run_scipy))
        run_library()
        samples["libspops"].append(time_us(run_library))
    library.lib.spops_bev_plan_destroy(plan)
    library.lib.spops_context_destroy(library.ctx)

    median = {name: statistics.median(times) for name, times in samples.items()}
    fastest = {name: min(times) for name, times in samples.items()}
    print(
        json.dumps(
            {
                "bench": "compare_scipy",
                "rig": Path(args.rig).name,
                "processor": device.name.decode(),
                "isa": device.isa.decode(),
                "threads": args.threads,
                "scipy_version": scipy.__version__,
                "terms": len(ranks_bev),
                "cells": num_cells,
                "nonempty_cells": int((np.diff(offsets) > 0).sum()),
                "pixels": num_pixels,
                "cols": args.cols,
                "samples": args.samples,
                "scipy_median_us": round(median["scipy"], 1),
                "libspops_median_us": round(median["libspops"], 1),
                "ratio": round(median["scipy"] / median["libspops"], 2),
                "scipy_min_us": round(fastest["scipy"], 1),
                "libspops_min_us": round(fastest["libspops"], 1),
                "min_ratio": round(fastest["scipy"] / fastest["libspops"], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
