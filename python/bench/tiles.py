# SPDX-License-Identifier: Apache-2.0
"""A tiled job on a made cloud, from LAZ to labels: points a second, and the share of each part.

    python python/bench/tiles.py --out DIR [--points 40e6] [--files 16] [--voxel 0.5] [--tile 500] [--device cuda] [--workers 16]

The cloud is a street plan with houses and trees, 20 points a square metre; its files are made and kept in DIR/in.
The network is examples/python/minkunet.py with drawn weights. The rate of one tile alone, repeated, stands beside
the rate of the GPU in the job.
"""
import argparse
import importlib.util
import json
import multiprocessing
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np

DENSITY = 20.0


def make_file(place, side, n, at):
    """n points of the square of this side at `at`: ground that rolls, houses on a grid, trees between them."""
    import laspy

    rng = np.random.default_rng([int(at[0]), int(at[1]), 7])
    xy = rng.random((n, 2)) * side + at
    ground = 8 * np.sin(xy[:, 0] / 97) * np.cos(xy[:, 1] / 131)
    lot = np.floor_divide(xy, 30.0)
    inside = (np.abs(xy - 30 * lot - 15) < 8).all(1)
    roof = 5 + 3 * np.modf(np.sin(lot[:, 0] * 12.9898 + lot[:, 1] * 78.233) * 43758.5453)[0] - 0.2 * np.abs(xy[:, 0] - 30 * lot[:, 0] - 15)
    tree = ~inside & (np.modf(np.sin(np.floor(xy[:, 0] / 4) * 3.1 + np.floor(xy[:, 1] / 4) * 7.7) * 9743.3)[0] > 0.8)
    z = ground + np.where(inside, roof, np.where(tree, rng.random(n) * 9, rng.random(n) * 0.05))
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales, header.offsets = [0.001] * 3, [at[0], at[1], 0]
    las = laspy.LasData(header)
    las.x, las.y, las.z = xy[:, 0], xy[:, 1], z
    part = Path(place).with_name("." + Path(place).name)
    las.write(str(part))
    part.rename(place)


def make_cloud(folder, points, files, workers):
    folder.mkdir(parents=True, exist_ok=True)
    columns = round(files**0.5)
    n = int(points / files)
    side = (n / DENSITY) ** 0.5
    jobs = [(str(folder / f"{i:03d}.laz"), side, n, (side * (i % columns), side * (i // columns))) for i in range(files)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(make_file, [j for j in jobs if not Path(j[0]).exists()])
    return [j[0] for j in jobs]


def load_minkunet():
    path = Path(__file__).resolve().parents[2] / "examples" / "python" / "minkunet.py"
    spec = importlib.util.spec_from_file_location("minkunet", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--points", type=float, default=40e6)
    p.add_argument("--files", type=int, default=16)
    p.add_argument("--voxel", type=float, default=0.5)
    p.add_argument("--tile", type=float, default=500.0)
    p.add_argument("--width", type=float, default=1.0)
    p.add_argument("--levels", type=int, default=5)
    p.add_argument("--device", default="cpu")
    p.add_argument("--workers", type=int, default=2, help="processes that cut and write")
    p.add_argument("--readers", type=int, default=1)
    p.add_argument("--keep", action="store_true", help="go on with the job that is there")
    a = p.parse_args()
    out = Path(a.out)

    import resource

    import torch

    import spops.tiles._run as engine
    from spops.tiles import Job, Segment
    from spops.tiles.__main__ import halo_of

    began = time.perf_counter()
    files = make_cloud(out / "in", a.points, a.files, a.workers)
    print(f"made {a.points:,.0f} points in {time.perf_counter() - began:.1f} s", flush=True)
    net = load_minkunet().MinkUNet(width=a.width, levels=a.levels).eval()
    halo = halo_of(net, 4)
    if not a.keep:
        shutil.rmtree(out / "job", ignore_errors=True)
    job = Job.create(files, out / "job", a.voxel, a.tile, halo)
    segment = Segment(net, a.device, torch.float16 if a.device != "cpu" else torch.float32)
    synchronize = torch.cuda.synchronize if a.device != "cpu" else lambda: None
    seconds, points, memory = [], [], []

    def label(tile):
        synchronize()
        start = time.perf_counter()
        said = segment(tile)
        synchronize()
        seconds.append(time.perf_counter() - start)
        points.append(len(tile))
        return said

    parts = {}

    def timed(name, function, *args):
        start = time.perf_counter()
        done = function(*args)
        parts[name] = time.perf_counter() - start
        return done

    failed = {}
    timed("cut", partial(engine._files_here, "cut", [i for i in range(len(files)) if not job.is_cut(i)], job.cut, 0, False, failed, a.workers))
    keys = job.tiles()
    first = timed("load one tile", job.load, keys[len(keys) // 2])
    label(first)  # kernels are loaded
    alone = []
    for _ in range(3):
        label(first)
        alone.append(seconds[-1])
    if a.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds.clear(), points.clear()
    start = time.perf_counter()
    engine._label_here(job, keys, lambda: label, 0, False, failed, a.readers)
    parts["label"] = time.perf_counter() - start
    if a.device != "cpu":
        memory.append(torch.cuda.max_memory_allocated() / 2**30)
    timed("write", partial(engine._files_here, "write", range(len(files)), job.write, 0, False, failed, a.workers))
    total = sum(parts[n] for n in ("cut", "label", "write"))
    n = sum(f.num_points for f in job.files)
    in_job, at_once = sum(points) / sum(seconds), len(first) / min(alone)
    print(f"{n:,} points, {len(keys)} tiles of {job.grid.tile} voxels, halo {halo}: {sum(points) / n:.2f} points read for each of a core")
    for name in ("cut", "label", "write"):
        print(f"{name:6s} {parts[name]:7.2f} s  {parts[name] / total:5.1%}  {n / parts[name]:14,.0f} points a second")
    print(f"all    {total:7.2f} s         {n / total:14,.0f} points a second from LAZ to labels")
    print(f"network {sum(seconds):.2f} s, {sum(seconds) / parts['label']:.1%} of label; {in_job:,.0f} points a second in the job, {at_once:,.0f} of one tile: {in_job / at_once:.1%}")
    print(f"loading one tile {parts['load one tile']:.2f} s of {len(first):,} points; host memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB at most, device {memory}")
    print(json.dumps(dict(points=n, tiles=len(keys), halo=halo, **parts, network=sum(seconds), in_job=in_job, at_once=at_once, failed=len(failed))))


if __name__ == "__main__":
    main()
