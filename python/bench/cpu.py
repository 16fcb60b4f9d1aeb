# SPDX-License-Identifier: Apache-2.0
"""The CPU beside what people use there: convolutions and a network beside spconv, voxels beside small_gicp and NumPy, radius search beside
nanoflann and SciPy, BEV pooling beside SciPy's sparse product.

    python python/bench/cpu.py SCAN.npy [--voxel 0.1] [--points POINTS.npy] [--rig RIG.json] [--cores 2] [--samples 9]
        [--rig RIG.json]            cameras (intrinsics, cam2lidar, lidar2ego of nuScenes), with BEVDet's sizes: 6 x 59 x 16 x 44, 128 x 128 cells
        [--nanoflann FOLDER]        of nanoflann.hpp (Debian: libnanoflann-dev); its program is compiled with the compiler c++
        [--clock cpu]               CPU time of the process instead of the time that passes: with --cores 1, where others use the machine too
        [--output FILE]             one JSON object a line

Each library runs on the same cores, on the same rows, in turns; medians count. What is not installed is left out and named. Sparse
convolutions are f32, 3 x 3 x 3; "alone" has its map, "with its map" makes it. Rows that differ by more than rounding are counted: spconv 2.3.8
has some with more than one thread, which change from run to run, and none with one. The ceiling is the rate at which NumPy's BLAS multiplies matrices
of as many rows as the scan has voxels. POINTCEPT_SOURCE names a checkout of Pointcept: its SpUNet then runs on both libraries.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHANNELS = 16, 32, 64, 128, 256
BEV = dict(num_depths=59, feature_height=16, feature_width=44, num_cells_x=128, num_cells_y=128, num_cells_z=1)  # BEVDet's
BEV_COLS = 80
RADIUS_M = 0.03722  # 13.9 neighbours of a point of points_200000.npy


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("scan")
    p.add_argument("--voxel", type=float, default=0.1, help="m")
    p.add_argument("--points", help="[N, 3] f32 for the radius search (default: the scan)")
    p.add_argument("--radius", type=float, default=RADIUS_M, help="m")
    p.add_argument("--rig", help="cameras, JSON, for BEV pooling")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--samples", type=int, default=9)
    p.add_argument("--nanoflann", default="/usr/include")
    p.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    p.add_argument("--output")
    return p.parse_args()


clock = time.perf_counter


def in_turns(runs: dict, samples: int) -> dict:
    """Median milliseconds of each; the libraries take turns, so that all meet the same machine."""
    times = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(samples):
        for name, run in runs.items():
            begin = clock()
            run()
            times[name].append(1e3 * (clock() - begin))
    return {name: statistics.median(t) for name, t in times.items()}


class Table:
    def __init__(self, a, facts):
        self.file = open(a.output, "w") if a.output else None
        self.facts = facts

    def row(self, work: str, ms: dict, **more):
        ours = ms["spops"]
        others = {n: t for n, t in ms.items() if n != "spops"}
        text = ", ".join(f"{n} {t:.2f} ({t / ours:.2f} times)" for n, t in others.items())
        extra = ", ".join(f"{k} {v}" for k, v in more.items())
        print(f"{work}: spops {ours:.2f} ms{', ' + text if text else ''}{', ' + extra if extra else ''}", flush=True)
        if self.file:
            self.file.write(json.dumps({**self.facts, "work": work, "ms": {n: round(t, 3) for n, t in ms.items()}, **more}) + "\n")
            self.file.flush()


def blas_gflops(rows: int, channels: int) -> float:
    import numpy as np

    g = np.random.default_rng(1)
    x, w = (g.standard_normal(s, dtype=np.float32) for s in ((rows, channels), (channels, channels)))
    out = np.empty((rows, channels), np.float32)
    times = []
    for _ in range(7):
        begin = clock()
        np.matmul(x, w, out=out)
        times.append(clock() - begin)
    return 2e-9 * rows * channels * channels / statistics.median(times)


def convolutions(a, table, modules, coords):
    """modules: name -> a library with spconv's names."""
    import torch

    batch = torch.cat([torch.zeros(len(coords), 1, dtype=torch.int32), coords.int()], 1)
    shape = [int(n) + 1 for n in coords.max(0).values]
    generator = torch.Generator().manual_seed(3)
    for channels in CHANNELS:
        feats, outs, alone, whole = torch.randn(len(coords), channels, generator=generator), {}, {}, {}
        weight = torch.randn(channels, 3, 3, 3, channels, generator=generator) / (4 * channels) ** 0.5
        for name, m in modules.items():
            layer = m.SubMConv3d(channels, channels, 3, bias=False, indice_key="k")
            layer.weight.data = weight.clone()
            x = m.SparseConvTensor(feats, batch, shape, 1)
            first = layer(x)
            outs[name] = first.features
            y = first.replace_feature(feats)  # has the map
            alone[name] = lambda layer=layer, y=y: layer(y)
            whole[name] = lambda layer=layer, m=m: layer(m.SparseConvTensor(feats, batch, shape, 1))
        reference = outs.pop("spops")
        differ = {f"rows_of_{name}_that_differ": rows_apart(out, reference) for name, out in outs.items()}
        ms = in_turns(alone, a.samples)
        ceiling = blas_gflops(len(coords), channels)
        rate = 2e-6 * count_pairs(coords) * channels * channels / ms["spops"]
        table.row(f"convolution {channels} to {channels}, alone", ms, gflops=round(rate, 1), ceiling=round(ceiling, 1),
                  share=round(rate / ceiling, 2), **differ)  # fmt: skip
        table.row(f"convolution {channels} to {channels}, with its map", in_turns(whole, a.samples))


def rows_apart(out, reference) -> int:
    """Rows that differ by more than rounding; more than one in ten is a mistake of this program."""
    apart = int(((out - reference).norm(dim=1) > 1e-4 * reference.norm(dim=1).mean()).sum())
    if apart > len(out) // 10:
        raise SystemExit(f"{apart} of {len(out)} rows differ")
    return apart


def count_pairs(coords) -> int:
    """Pairs of a submanifold 3 x 3 x 3, counted by NumPy."""
    import numpy as np

    c = coords.numpy().astype(np.int64) + 1
    sizes = c.max(0) + 2
    keys = np.sort((c[:, 0] * sizes[1] + c[:, 1]) * sizes[2] + c[:, 2])
    steps = [(i * sizes[1] + j) * sizes[2] + k for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)]
    at = lambda q: keys[np.minimum(np.searchsorted(keys, q), len(keys) - 1)] == q
    return int(sum(at(keys + s).sum() for s in steps))


def network(a, table, modules, points):
    """Pointcept's SpUNet, a frame in inference."""
    import torch

    sys.path.insert(0, str(ROOT / "python/tests/peers"))
    sys.path.insert(0, str(ROOT / "python/bench"))
    import sources
    import spunet

    source = sources.folder("POINTCEPT_SOURCE")
    if source is None:
        print("SpUNet: POINTCEPT_SOURCE names no checkout of Pointcept: left out")
        return
    data, _ = spunet.sample([f"{a.scan}:{a.voxel}"], 10**9, "cpu")
    runs, outs, state = {}, {}, None
    for name in modules:
        given = spops_modules() if name == "spops" else sources.installed("spconv")
        net = sources.pointcept(source, given, "sparse_unet.spconv_unet_v1m1_base").SpUNetBase(4, spunet.CLASSES).eval()
        state = state or {k: v.clone() for k, v in net.state_dict().items()}
        net.load_state_dict(state)
        outs[name] = net(dict(data))
        runs[name] = lambda net=net: net(dict(data))
    apart = {f"distance_of_{n}": float(f"{((out - outs['spops']).norm() / out.norm()).item():.1e}") for n, out in outs.items() if n != "spops"}
    table.row("SpUNet, a frame with its maps", in_turns(runs, max(3, a.samples // 3)), rows=len(data["feat"]), **apart)


def spops_modules():
    import spops.compat

    return spops.compat.modules("spconv")


def voxels(a, table, points):
    import numpy as np
    import torch

    import spops

    xyz = torch.from_numpy(np.ascontiguousarray(points[:, :3]))
    counts = {"spops": spops.voxelize(xyz, a.voxel).feats.shape[0]}
    runs = {"spops": lambda: spops.voxelize(xyz, a.voxel)}
    if importlib.util.find_spec("small_gicp"):
        import small_gicp

        wide = np.ascontiguousarray(points[:, :3].astype(np.float64))
        runs["small_gicp"] = lambda: small_gicp.voxelgrid_sampling(wide, a.voxel, num_threads=a.cores)
        counts["small_gicp"] = runs["small_gicp"]().size()
    else:
        print("small_gicp: not installed")
    narrow = np.ascontiguousarray(points[:, :3])
    runs["numpy"] = lambda: numpy_voxels(narrow, a.voxel)
    counts["numpy"] = len(runs["numpy"]())
    table.row(f"voxels of {len(points)} points, means", in_turns(runs, a.samples), voxels=counts)


def numpy_voxels(points, size_m):
    """Means of the points of each voxel, as fast as NumPy's sorts offer it: a key holds a point's voxel and, below it, the point."""
    import numpy as np

    key, bits = np.zeros(len(points), np.int64), (len(points) - 1).bit_length()
    for column in points.T:
        cells = np.floor(column.astype(np.float64) / size_m).astype(np.int64)
        cells -= cells.min()
        key = (key << int(cells.max()).bit_length()) | cells
    key = (key << bits) | np.arange(len(points))
    key.sort()
    order, key = key & ((1 << bits) - 1), key >> bits
    start = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    sums = np.add.reduceat(points[order], start, axis=0)
    return sums / np.diff(np.append(start, len(points)))[:, None].astype(np.float32)


def radius(a, table):
    import numpy as np
    import torch

    import spops.functional as F

    points = np.ascontiguousarray(np.load(a.points or a.scan)[:, :3].astype(np.float32))
    given = torch.from_numpy(points)
    runs = {"spops": lambda: F.neighbors(given, radius_m=a.radius)}
    if importlib.util.find_spec("scipy"):
        from scipy.spatial import cKDTree

        runs["scipy"] = lambda: cKDTree(points).query_ball_point(points, a.radius, workers=a.cores)
    ms, counts = in_turns(runs, a.samples), {}
    if (Path(a.nanoflann) / "nanoflann.hpp").is_file():
        with tempfile.TemporaryDirectory() as folder:
            program, cloud = f"{folder}/nanoflann_radius", f"{folder}/points.f32"
            points.tofile(cloud)
            source = ROOT / "bench/baselines/nanoflann_radius.cpp"
            subprocess.run(["c++", "-O3", "-march=native", "-std=c++17", "-pthread", f"-I{a.nanoflann}", source, "-o", program], check=True)
            lines = subprocess.run([program, cloud, str(a.radius), str(a.cores), str(a.samples)], check=True, stdout=subprocess.PIPE, text=True).stdout
        rows = [[float(v) for v in line.split()] for line in lines.splitlines()]
        ms["nanoflann"] = statistics.median(r[1] + r[2] for r in rows) / 1e3
        counts["pairs"] = int(rows[0][0])
        counts["nanoflann_tree_ms"] = round(statistics.median(r[1] for r in rows) / 1e3, 2)
    else:
        print(f"nanoflann: no nanoflann.hpp in {a.nanoflann}")
    table.row(f"radius search, {len(points)} points", ms, **counts)


def bev_ranks(path):
    """Depth element, pixel row and cell of every point inside the grid, ordered by cell, and the number of cameras."""
    import numpy as np

    depths, height, width = BEV["num_depths"], BEV["feature_height"], BEV["feature_width"]
    rig = json.loads(Path(path).read_text())
    u, v = np.linspace(0, 703, width), np.linspace(0, 255, height)  # px of the input, which is the image at 0.48 less (32, 176) px
    depth_m, v, u = np.meshgrid(np.arange(1.0, 1 + depths), v, u, indexing="ij")
    pixels = np.stack([(u + 32) / 0.48 * depth_m, (v + 176) / 0.48 * depth_m, depth_m], -1).reshape(-1, 3)
    cells = []
    for camera in rig["cameras"]:
        to_ego = np.array(rig["lidar2ego"]) @ np.array(camera["cam2lidar"])
        points = pixels @ np.linalg.inv(np.array(camera["intrinsics"])).T @ to_ego[:3, :3].T + to_ego[:3, 3]
        x, y, z = np.floor((points - (-51.2, -51.2, -5.0)) / (0.8, 0.8, 8.0)).astype(np.int64).T
        inside = (x >= 0) & (x < BEV["num_cells_x"]) & (y >= 0) & (y < BEV["num_cells_y"]) & (z == 0)
        cells.append(np.where(inside, y * BEV["num_cells_x"] + x, -1))
    cells = np.concatenate(cells)
    ranks_depth = np.flatnonzero(cells >= 0)
    ranks_depth = ranks_depth[np.argsort(cells[ranks_depth], kind="stable")]
    area = height * width
    ranks_feat = ranks_depth // (depths * area) * area + ranks_depth % area
    return ranks_depth, ranks_feat, cells[ranks_depth], len(rig["cameras"])


def bev(a, table):
    """Both sum the same terms, each in f32: they differ by at most one rounding a term and result. SciPy's matrix has the depth values, gathered."""
    import numpy as np
    import torch

    import spops.functional as F

    if a.rig is None or not importlib.util.find_spec("scipy"):
        print("BEV pooling: no --rig is given, or SciPy is not installed")
        return
    import scipy.sparse

    *ranks, cameras = bev_ranks(a.rig)
    num_cells, pixels = BEV["num_cells_x"] * BEV["num_cells_y"], cameras * BEV["feature_height"] * BEV["feature_width"]
    starts = np.flatnonzero(np.diff(ranks[2], prepend=-1))
    arrays = (*ranks, starts, np.diff(starts, append=len(ranks[2])))
    plan = F.bev_plan_ranks(*(torch.from_numpy(x.astype(np.int32)) for x in arrays), num_batches=1, num_cameras=cameras, max_cols=BEV_COLS, **BEV)
    generator = torch.Generator().manual_seed(1)
    depth = torch.rand(pixels * BEV["num_depths"], 1, generator=generator)
    feat = torch.randn(pixels, BEV_COLS, generator=generator)
    out = torch.full((num_cells, BEV_COLS), float("nan"))
    offsets = np.searchsorted(ranks[2], np.arange(num_cells + 1))
    matrix = scipy.sparse.csr_matrix((depth.numpy()[ranks[0], 0], ranks[1], offsets), shape=(num_cells, pixels))
    runs = {"spops": lambda: F.bevpool(feat, depth, plan, out=out), "scipy": lambda: matrix @ feat.numpy()}
    runs["spops"]()
    wide = feat.numpy().astype(np.float64)
    bound = (np.diff(offsets)[:, None] + 2) * 2.0**-24 * (abs(matrix).astype(np.float64) @ np.abs(wide))
    for name, found in (("spops", out.numpy()), ("scipy", runs["scipy"]())):
        if not (np.abs(found - matrix.astype(np.float64) @ wide) <= bound).all():
            raise SystemExit(f"{name}: an error exceeds the bound of an f32 sum")
    table.row(f"BEV pooling, {len(ranks[0])} points, {BEV_COLS} channels, f32", in_turns(runs, 5 * a.samples), rig=Path(a.rig).name)


def main():
    global clock
    a = arguments()
    if a.clock == "cpu":
        clock = time.process_time
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.cores])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(a.cores)
    import numpy as np
    import torch

    torch.set_num_threads(a.cores)
    torch.set_grad_enabled(False)
    points = np.load(a.scan).astype(np.float32)
    points = points[np.isfinite(points).all(1)]
    cells = np.floor(points[:, :3].astype(np.float64) / a.voxel).astype(np.int64)
    coords = torch.from_numpy(np.unique(cells - cells.min(0), axis=0))
    processor = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    commit = os.environ.get("SPOPS_COMMIT") or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    facts = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit, "device": processor, "threads": a.cores, "clock": a.clock,
             "scan": Path(a.scan).name, "voxel_m": a.voxel, "command": " ".join(["python", "python/bench/cpu.py", *map(os.path.basename, sys.argv[1:])])}  # fmt: skip
    print(f"{processor}, {a.cores} cores; {Path(a.scan).name}: {len(points)} points, {len(coords)} voxels of {a.voxel} m", flush=True)
    table = Table(a, facts)
    import spops.spconv.pytorch

    modules = {"spops": spops.spconv.pytorch}
    if importlib.util.find_spec("spconv"):
        import spconv.pytorch

        modules["spconv"] = spconv.pytorch
    else:
        print("spconv: not installed")
    voxels(a, table, points)
    radius(a, table)
    bev(a, table)
    convolutions(a, table, modules, coords)
    network(a, table, modules, points)


if __name__ == "__main__":
    main()
