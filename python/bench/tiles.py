# SPDX-License-Identifier: Apache-2.0
"""A tiled job on a made cloud, from LAZ to labels: points a second, and the share of each part.

    python python/bench/tiles.py --out DIR [--points 40e6] [--files 16] [--voxel 0.5] [--tile 500] [--device cuda] [--workers N]

The cloud is a street plan with houses and trees, 20 points a square metre; its files are made and kept in DIR/in,
with --distinct as many of them, and the others are copies at other places. Making them is no part of the job.
The network is examples/python/minkunet.py with drawn weights. The rate of one tile alone, repeated, stands beside
the rate of the GPU in the job. Progress is on stderr. A run that ended anywhere goes on with --keep; figures are
then of what was left.

Without --workers there is a process for each core that this one may use. $(nproc) is another number where
OMP_NUM_THREADS is set.
"""
import argparse
import importlib.util
import json
import multiprocessing
import os
import shutil
import struct
import sys
import threading
import time
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


def move_file(source, place, at):
    """A copy of a file of make_file at another place: its header says where its points are."""
    part = Path(place).with_name("." + Path(place).name)
    shutil.copyfile(source, part)
    with open(part, "r+b") as f:
        f.seek(155)
        old = struct.unpack("<9d", f.read(72))  # offsets x y z; most x, least x, most y, least y, most z, least z
        by = [at[a] - old[a] for a in range(2)]
        f.seek(155)
        f.write(struct.pack("<9d", *at, old[2], old[3] + by[0], old[4] + by[0], old[5] + by[1], old[6] + by[1], *old[7:]))
    part.rename(place)


def make_cloud(folder, points, files, distinct, workers):
    folder.mkdir(parents=True, exist_ok=True)
    columns = round(files**0.5)
    n = int(points / files)
    side = (n / DENSITY) ** 0.5
    places = [(str(folder / f"{i:03d}.laz"), (side * (i % columns), side * (i // columns))) for i in range(files)]
    made, moved = places[: distinct or files], places[distinct or files :]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(make_file, [(p, side, n, at) for p, at in made if not Path(p).exists()], chunksize=1)
        pool.starmap(move_file, [(made[i % len(made)][0], p, at) for i, (p, at) in enumerate(moved) if not Path(p).exists()], chunksize=1)
    return [p for p, _ in places]


class Memory(threading.Thread):
    """The most of the machine's memory that was in use beyond the start's, without what files are kept in."""

    def __init__(self):
        super().__init__(daemon=True)
        self.first = self.least = self.available()
        self.start()

    @staticmethod
    def available():
        with open("/proc/meminfo", encoding="ascii") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))

    def run(self):
        while True:
            self.least = min(self.least, self.available())
            time.sleep(0.2)

    def most_gib(self):
        return (self.first - self.least) / 2**30


def load_minkunet():
    path = Path(__file__).resolve().parents[2] / "examples" / "python" / "minkunet.py"
    spec = importlib.util.spec_from_file_location("minkunet", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_seconds(tile, device, synchronize):
    """How long the copies of a tile's points to the device take: their places and their voxels."""
    import torch

    took = []
    for _ in range(5):
        start = time.perf_counter()
        there = [torch.from_numpy(x).to(device) for x in (tile.xyz, tile.voxels)]
        synchronize()
        took.append(time.perf_counter() - start)
        del there
    return float(np.median(took))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--points", type=float, default=40e6)
    p.add_argument("--files", type=int, default=16)
    p.add_argument("--distinct", type=int, default=0, help="files that are made; others are copies of them (0: all are made)")
    p.add_argument("--voxel", type=float, default=0.5)
    p.add_argument("--tile", type=float, default=500.0)
    p.add_argument("--width", type=float, default=1.0)
    p.add_argument("--levels", type=int, default=5)
    p.add_argument("--device", default="cpu")
    p.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes that cut and write (one a core)")
    p.add_argument("--readers", type=int, default=1)
    p.add_argument("--keep", action="store_true", help="go on with the job that is there")
    a = p.parse_args()
    out = Path(a.out)

    import torch

    import spops.tiles._run as engine
    from spops.tiles import Job, Segment
    from spops.tiles.__main__ import halo_of

    began, used = time.perf_counter(), Memory()
    files = make_cloud(out / "in", a.points, a.files, a.distinct, a.workers)
    print(f"made {a.points:,.0f} points in {time.perf_counter() - began:.1f} s; {a.workers} processes, {a.readers} readers", flush=True)
    torch.manual_seed(1)  # a run that goes on has the same network
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

    label.pin = segment.pin
    parts = {}

    def timed(name, function, *args):
        print(f"{name}, after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        start = time.perf_counter()
        done = function(*args)
        parts[name] = time.perf_counter() - start
        return done

    failed, left = {}, {}
    cut_not = [i for i in range(len(files)) if not job.is_cut(i)]
    left["cut"] = sum(job.files[i].num_points for i in cut_not)
    timed("cut", engine._files_here, job, "cut", cut_not, 2, True, failed, a.workers)
    if failed:
        raise SystemExit(f"cut: {failed}")
    every = job.tiles()
    keys = [k for k in every if not job.is_labelled(k)]
    middle, alone = every[len(every) // 2], []
    points_of_one = len(timed("load one tile", job.load, middle))
    with engine.loaders(job, [middle] * 2, a.readers, label.pin) as loads:  # it lies where tiles of the job do
        first = loads.result(middle, loads.submit(middle))
        label(first)  # kernels are loaded
        for _ in range(3):
            label(first)
            alone.append(seconds[-1])
        copying = copy_seconds(first, a.device, synchronize)
        del first
    if a.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds.clear(), points.clear()
    timed("label", engine._label_here, job, keys, lambda: label, 2, True, failed, a.readers)
    if a.device != "cpu":
        memory.append(torch.cuda.max_memory_allocated() / 2**30)
    written_not = [i for i in range(len(files)) if not job.is_written(i) and job.is_complete(i)]
    left["write"] = sum(job.files[i].num_points for i in written_not)
    timed("write", engine._files_here, job, "write", written_not, 2, True, failed, a.workers)
    n = sum(f.num_points for f in job.files)
    left["label"] = round(n * len(keys) / len(every))
    network = dict(network=sum(seconds), points_read=sum(points), tile_ms=[round(1e3 * s, 1) for s in seconds])
    one = dict(points_of_one=points_of_one, one=min(alone), copying=copying)
    report(a, job, parts, left, dict(tiles=len(every), halo=halo, **network, **one))
    print(f"memory: {used.most_gib():.1f} GiB of the host at most, all processes; device {', '.join(f'{m:.1f} GiB' for m in memory) or 'none'}; {len(failed)} parts failed")
    for part, error in failed.items():
        print(f"{part}: {error}")
    if failed:
        raise SystemExit(1)


def report(a, job, parts, left, said):
    """What was done in this run, and how fast."""
    total, n = sum(parts[name] for name in left), sum(f.num_points for f in job.files)
    print(f"{n:,} points, {said['tiles']} tiles of {job.grid.tile} voxels, halo {said['halo']}" + ("" if all(v == n for v in left.values()) else "; of a job that was begun before"))
    for name in ("cut", "label", "write"):
        print(f"{name:6s} {parts[name]:7.2f} s  {parts[name] / total:5.1%}  {left[name] / parts[name]:14,.0f} points a second")
    if all(v == n for v in left.values()):
        print(f"all    {total:7.2f} s         {n / total:14,.0f} points a second from LAZ to labels")
    if said["points_read"]:
        in_job, at_once = said["points_read"] / said["network"], said["points_of_one"] / said["one"]
        print(f"{said['points_read'] / left['label']:.2f} points read for each of a core; loading one tile of {said['points_of_one']:,} points {parts['load one tile']:.2f} s")
        print(f"network {said['network']:.2f} s, {said['network'] / parts['label']:.1%} of label; {in_job:,.0f} points a second in the job, {at_once:,.0f} of one tile: {in_job / at_once:.1%}")
        ms = np.array(said["tile_ms"])
        print(f"one tile {1e3 * said['one']:.1f} ms, of it {1e3 * said['copying']:.1f} copies of points; in the job {np.median(ms):.1f} ms (median), {ms.min():.1f} to {ms.max():.1f}")
        said = dict(said, in_job=in_job, at_once=at_once)
    print(json.dumps(dict(points=n, files=len(job.files), distinct=a.distinct or len(job.files), device=a.device, workers=a.workers, readers=a.readers, **parts, **said)))


if __name__ == "__main__":
    main()
