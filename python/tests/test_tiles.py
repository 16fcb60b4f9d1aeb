# SPDX-License-Identifier: Apache-2.0
"""A part of a cloud gives what the whole gives, bit for bit: operators, a network over tiles of four sizes, and jobs."""
import contextlib
import importlib.util
import io
import math
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import spops
import spops.functional as F
import spops.nn as snn
from spops.tiles import Failed, Grid, Job, Segment, run
from spops.tiles._job import POINT, _by_cell, _by_index
from spops.tiles._las import whole as whole_file
from spops.tiles._loaders import Processes, Room, Threads, bytes_of, loaders
from spops.tiles._run import runtime_env
from watched_job import Watched

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


# ---- Operators ----------------------------------------------------------------------------------

CORE = (9.0, 14.0)  # m along x
HALO = 4.0


def cloud(device):
    """Points in a slab, a few voxels of which have very many; and which of them a part has."""
    g = torch.Generator().manual_seed(5)
    spread = torch.rand(30000, 3, generator=g, device="cpu") * torch.tensor([24.0, 12.0, 3.0], device="cpu")
    piles = torch.tensor([[10.25, 3.25, 1.25], [12.75, 6.25, 0.25], [2.25, 1.25, 1.25]], device="cpu").repeat_interleave(7001, 0)
    points = torch.cat([spread, piles + 0.4 * torch.rand(len(piles), 3, generator=g, device="cpu") - 0.2])
    points = points[torch.randperm(len(points), generator=g, device="cpu")].to(device)
    return points, (points[:, 0] >= CORE[0] - HALO) & (points[:, 0] < CORE[1] + HALO)


def in_core(rows, size_m):
    return (rows[:, 1] * size_m >= CORE[0]) & ((rows[:, 1] + 1) * size_m <= CORE[1])


def assert_core_is_same(part, whole, size_m):
    """(rows, features) of both, whose rows may lie in any order."""
    sorted_ones = []
    for rows, feats in (part, whole):
        core = in_core(rows, size_m)
        rows, feats = rows[core].cpu().numpy(), feats[core].detach().float().cpu().numpy()
        order = np.lexsort(rows.T[::-1])
        sorted_ones.append((rows[order], feats[order]))
    (a, x), (b, y) = sorted_ones
    assert len(a) > 100 and np.array_equal(a, b)
    assert np.array_equal(x.view(np.int32), y.view(np.int32)), f"{(x != y).any(1).sum()} of {len(x)} rows differ"


@pytest.mark.parametrize("order", ["given", "lexicographic", "morton", "hilbert"])
@pytest.mark.parametrize("channels", [3, 40])
def test_voxels_and_points(order, channels, device):
    points, mask = cloud(device)
    feats = torch.randn(len(points), channels)
    found = []
    for keep in (mask, torch.ones_like(mask)):
        p, f = points[keep], feats[keep]
        out = {}
        for reduce in ("mean", "sum", "max"):
            x = spops.voxelize(p, 0.5, f, order=order, reduce=reduce)
            out[reduce] = x.coords, x.feats
        pooled = snn.AvgPool3d(3, 2, padding=1)(x)
        out["pool"] = pooled.coords, pooled.feats
        largest = snn.MaxPool3d(2)(x)
        out["max pool"] = largest.coords, largest.feats
        place = torch.floor(p / 0.5).int()
        at = torch.cat([torch.zeros_like(place[:, :1]), place], 1)
        numbers = torch.arange(len(points))[keep].float()[:, None]  # points of a voxel are told apart by these
        for kind, missing in (("linear", "zero"), ("linear", "rescale"), ("nearest", "zero")):
            y = spops.devoxelize(x, p, interpolation=kind, missing=missing)
            core = in_core(at, 0.5)
            out[kind, missing] = torch.cat([at[core], numbers[core].int()], 1), y[core]
        found.append(out)
    part, whole = found
    for name in part:
        assert_core_is_same(part[name], whole[name], {"pool": 1.0, "max pool": 1.0}.get(name, 0.5))


@pytest.mark.parametrize("curve", ["lexicographic", "morton", "hilbert"])
def test_orders_keep_their_places(curve, device):
    """Rows of a part follow each other as in the whole, where the box of the curve is the caller's."""
    points, mask = cloud(device)
    box = dict(lower=(0, 0, 0, 0), upper=(0, 63, 63, 63))
    rows = []
    for keep in (mask, torch.ones_like(mask)):
        place = torch.floor(points[keep] / 0.5).int()
        places = torch.cat([torch.zeros_like(place[:, :1]), place], 1)
        rows.append(F.coords_rows(F.coords(places, duplicates="merge", order=curve, **box))[0].cpu())
    part, whole = rows
    left = (whole[:, 1] * 0.5 >= CORE[0] - HALO) & (whole[:, 1] * 0.5 < CORE[1] + HALO)
    assert torch.equal(part, whole[left])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_windows(dtype, device):
    """Attention in windows at fixed places; the tile of the kernel is the caller's on CUDA."""
    points, mask = cloud(device)
    channels = 64
    found = []
    for keep in (mask, torch.ones_like(mask)):
        x = spops.voxelize(points[keep], 0.5, order="lexicographic")
        table = torch.randn(512, 3 * channels, generator=torch.Generator(device).manual_seed(2), device=device, dtype=dtype)
        rows = x.coords
        qkv = table[(rows[:, 1] * 31 + rows[:, 2] * 7 + rows[:, 3]) % 512]
        patches = F.patches_grid(rows[:, 1:].contiguous(), window=[4, 4, 4], bits=6)
        q, k, v = qkv.chunk(3, 1)
        found.append((rows, F.attention(q, k, v, patches, heads=4)))
    part, whole = found
    size = 0.5
    rows = part[0]
    edge = (rows[:, 1] // 4 * 4 * size >= CORE[0] - HALO) & ((rows[:, 1] // 4 + 1) * 4 * size <= CORE[1] + HALO)
    assert edge[in_core(rows, size)].all()  # windows of the core are whole
    assert_core_is_same(part, whole, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 96, 128, 256])
def test_layers(dtype, width, device):
    points, mask = cloud(device)
    net = snn.Sequential(
        snn.SubMConv3d(3, width, 3), snn.BatchNorm(width, relu=True), snn.SparseConv3d(width, width, 2, stride=2, key="down"), snn.ReLU(),
        snn.Linear(width, width), snn.LayerNorm(width), snn.SparseInverseConv3d(width, width, 2, key="down"),
    ).eval().to(device)  # fmt: skip
    with torch.no_grad(), spops.crop_independent(), torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
        part, whole = (spops.voxelize(points[keep], 0.5, order="lexicographic") for keep in (mask, torch.ones_like(mask)))
        found = [(x.coords, net(x).feats) for x in (part, whole)]
    assert spops.receptive_field_of(net, part)[0].most * 0.5 <= HALO
    assert_core_is_same(*found, 0.5)


# ---- Tiles of a file ----------------------------------------------------------------------------


def example(name):
    """A file of examples/python, which a checkout has."""
    if not (EXAMPLES / f"{name}.py").is_file():
        pytest.skip(f"examples/python/{name}.py: this is no checkout")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def airborne(n):
    """About n points of an airborne scan, f64 in m; made ones where the data is not there."""
    path = Path(os.environ.get("SPOPS_TEST_DATA", ""), "airborne_autzen_a.npy")
    if path.is_file():
        points = np.load(path).astype(np.float64)
        return points[:: max(len(points) // n, 1)]
    rng = np.random.default_rng(3)
    xy = rng.uniform((0, 0), (390, 267), (n, 2))
    return np.c_[xy, 6 * np.sin(xy[:, 0] / 40) + np.where(rng.random(n) < 0.3, rng.uniform(0, 20, n), rng.uniform(0, 0.3, n))]


def write_laz(path, points, intensity=0):
    laspy = pytest.importorskip("laspy")
    pytest.importorskip("lazrs")
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales, header.offsets = [0.001] * 3, [494000, 4878000, 100]
    las = laspy.LasData(header)
    las.x, las.y, las.z = (points + [494000.3, 4878000.7, 120.0]).T
    las.intensity = np.full(len(points), intensity)
    las.write(str(path))
    return str(path)


@pytest.fixture
def scan(tmp_path):
    """Two files, whose points lie among each other."""
    points = airborne(30000)
    return [write_laz(tmp_path / "a.laz", points[::2]), write_laz(tmp_path / "b.las", points[1::2])]


def result(job):
    """Labels and logits of all points, the file's order."""
    found = [job.labels_of(i) for i in range(len(job.files))]
    return np.concatenate([l for l, _ in found]), np.concatenate([g for _, g in found]).view(np.int32)


def assert_same(job, whole):
    for a, b in zip(result(job), result(whole)):
        assert np.array_equal(a, b), f"{(a != b).reshape(len(a), -1).any(1).sum()} of {len(a)} points differ"


def small(device="cpu"):
    return Segment(example("minkunet").small(), str(device), torch.float16 if "cuda" in str(device) else torch.float32, logits=True)


HALO_VOXELS = 41  # of the network of small(); test_minkunet asks


def one_tile(files, out, device="cpu"):
    job = Job.create(files, out, 1.0, 100000, HALO_VOXELS, keep_logits=True)
    run(job, lambda: small(device), show=False)
    assert len(job.tiles()) == 1
    return job


def test_minkunet(tmp_path, device):
    """Four sizes of tiles: labels and logits of every point are those of the whole cloud."""
    files = [write_laz(tmp_path / "a.laz", airborne(60000))]
    net = example("minkunet").small().to(device)
    rows = torch.unique(torch.randint(0, 32, (3000, 4)) % torch.tensor([1, 32, 32, 32]), dim=0)
    reach = spops.receptive_field_of(net, spops.SparseTensor(torch.randn(len(rows), 4), rows))[0]
    assert reach.most == HALO_VOXELS
    whole = one_tile(files, tmp_path / "whole", device)
    labels, _ = result(whole)
    assert len(np.unique(labels)) > 4
    for tile_m in (210, 130, 77, 60):
        job = Job.create(files, tmp_path / f"tiles{tile_m}", 1.0, tile_m, HALO_VOXELS, keep_logits=True)
        run(job, lambda: small(device), show=False, readers=2)
        assert len(job.tiles()) > 1
        assert_same(job, whole)
    # A halo that is too small shows.
    job = Job.create(files, tmp_path / "seams", 1.0, 130, 8, keep_logits=True)
    run(job, lambda: small(device), show=False)
    assert (result(job)[1] != result(whole)[1]).any(1).sum() > 1000


# ---- Jobs ---------------------------------------------------------------------------------------


def by_height(tile):
    """Labels that need no network: of a point and of how many the tile has around it."""
    z = tile.xyz[:, 2]
    return np.clip(z - 100, 0, 31).astype(np.uint8), np.c_[z, tile.voxels[:, 0]].astype(np.float32)


def test_files_come_back(scan, tmp_path, device):
    laspy = pytest.importorskip("laspy")
    job = Job.create(scan, tmp_path / "out", 0.5, 40, 20, origin_m=(100.25, -3.0, 0.0), keep_logits=True)
    run(job, lambda: by_height, show=False, workers=2, readers=3)
    for i, path in enumerate(scan):
        before, after = laspy.read(path), laspy.read(job.target(i))
        for name in before.point_format.dimension_names:
            if name != "classification":
                assert np.array_equal(before[name], after[name]), name
        assert np.array_equal(np.asarray(after.classification), np.clip(before.xyz[:, 2] - 100, 0, 31).astype(np.uint8))
        assert np.array_equal(job.labels_of(i)[1][:, 0], before.xyz[:, 2].astype(np.float32))
    new = Job.create(scan, tmp_path / "new", 0.5, 40, 20, field="guess")
    run(new, lambda: by_height, show=False)
    after = laspy.read(new.target(1))
    assert np.array_equal(np.asarray(after["guess"]), new.labels_of(1)[0]) and not np.asarray(after.classification).any()


def test_tile_is_a_part_of_the_whole(scan, tmp_path, device):
    """Points of a tile are those of its core and halo, in the order of the files."""
    job = Job.create(scan, tmp_path / "out", 0.5, 33, 71, keep_logits=True)
    everything = Job.create(scan, tmp_path / "all", 0.5, 100000, 0)
    for j in (job, everything):
        for i in range(2):
            j.cut(i)
    whole = everything.load(everything.tiles()[0])
    assert len(whole) == sum(f.num_points for f in job.files) and len(job.tiles()) > 20
    cores = 0
    for key in job.tiles():
        tile = job.load(key)
        inside = job.grid.is_read(key, whole.voxels)
        assert inside.sum() == len(tile) and np.array_equal(whole.xyz[inside], tile.xyz)
        assert np.array_equal(whole.index[inside], tile.index) and np.array_equal(whole.source[inside], tile.source)
        assert np.array_equal(tile.is_core, (tile.voxels[:, :2] // job.grid.tile == np.array(key)).all(1))
        cores += tile.is_core.sum()
    assert cores == len(whole)


def test_order_of_parts(device):
    """Points by cell and by index are those of a stable sort, whichever way they are sorted."""
    rng = np.random.default_rng(3)
    for side in (1, 5, 1000, 2**31 - 1):
        cells = rng.integers(-side, side, (5000, 2)).astype(np.int32)
        cells[1000:1500] = cells[:500]
        order, places = _by_cell(cells)
        assert np.array_equal(order, np.lexsort((cells[:, 1], cells[:, 0])))
        assert sum(p.stop - p.start for _, p in places) == len(cells) and len({k for k, _ in places}) == len(places)
        assert all((cells[order[p]] == key).all() for key, p in places)
    for most in (5000, 2**32 - 1):
        points = np.zeros(5000, POINT)
        points["index"] = rng.permutation(5000).astype(np.uint64) * (most // 5000)
        points["xyz"] = rng.integers(-(2**31), 2**31, (5000, 3))
        assert np.array_equal(_by_index(points), points[np.argsort(points["index"])])
    assert len(_by_index(np.empty(0, POINT))) == 0
    grid = Grid(0.3, 7, 2, origin_m=(0.1, -5.0, 3.0))
    xyz = rng.normal(size=(2000, 3)) * 50
    assert np.array_equal(grid.voxels(xyz), np.floor((xyz - np.asarray(grid.origin_m)) / 0.3))
    for i in range(3):
        bad = xyz.copy()
        bad[77, i] = np.nan
        with pytest.raises(ValueError, match=rf"points\[1077\]\[{i}\] lies in voxel nan, expected less than 2\^31 - 2\^16"):
            grid.voxels(bad, first=1000)


def test_it_goes_on(scan, tmp_path, device):
    """Ended in the middle, a job goes on with what is not done; a tile that fails is tried again and stops no other."""
    whole = Job.create(scan, tmp_path / "whole", 1.0, 50, 10, keep_logits=True)
    run(whole, lambda: by_height, show=False)
    job = Job.create(scan, tmp_path / "out", 1.0, 50, 10, keep_logits=True)
    seen = []

    def ends(tile):
        seen.append(tile.key)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return by_height(tile)

    with pytest.raises(KeyboardInterrupt):
        run(job, lambda: ends, show=False)
    done = [k for k in job.tiles() if job.is_labelled(k)]
    assert 0 < len(done) < 4 and not job.is_written(0)
    bad = job.tiles()[-1]
    seen.clear()

    def fails(tile):
        seen.append(tile.key)
        if tile.key == bad or seen.count(tile.key) == 1 and tile.key == job.tiles()[-2]:
            raise RuntimeError("not this one")
        return by_height(tile)

    with pytest.raises(Failed, match="1 parts failed(.|\n)*not this one"):
        run(Job.create(scan, tmp_path / "out", 1.0, 50, 10, keep_logits=True), lambda: fails, retries=2, show=False)
    assert seen.count(bad) == 3 and seen.count(job.tiles()[-2]) == 2 and not set(done) & set(seen)
    assert [k for k in job.tiles() if not job.is_labelled(k)] == [bad]
    assert [job.is_written(i) for i in range(2)] == [bad not in job.tiles_of(i) for i in range(2)] != [True, True]
    run(job, lambda: by_height, show=False)
    assert_same(job, whole)
    assert job.is_written(0) and job.is_written(1)
    with pytest.raises(ValueError, match="job.json says another job"):
        Job.create(scan, tmp_path / "out", 1.0, 60, 10, keep_logits=True)


def watched(scan, out, tile_m=30):
    job = Watched.create(scan, out, 1.0, tile_m, 10, keep_logits=True)
    for i in range(len(job.files)):
        job.cut(i)
    return job


def test_tiles_wait(scan, tmp_path, device):
    """No more tiles are loaded ahead than there are readers, besides the one at work and the one that is kept."""
    for readers in (1, 3):
        job = watched(scan, tmp_path / f"out{readers}")
        labelled, most = [], []

        def label(tile):
            most.append(len(Watched.seen(job)) - len(labelled))
            time.sleep(0.01)
            labelled.append(tile.key)
            return by_height(tile)

        run(job, lambda: label, show=False, readers=readers)
        seen = Watched.seen(job)
        assert sorted((int(i), int(j)) for i, j, *_ in seen) == sorted(labelled) == job.tiles() and len(seen) > 40
        assert labelled == job.tiles() and max(most) <= readers + 2
        assert {who for _, _, who, _ in seen} == ({"here"} if readers == 1 else {"loader"})
        assert (str(os.getpid()) in {pid for *_, pid in seen}) == (readers == 1)


def mapped():
    """Memory that is shared with loaders, of this process."""
    with open("/proc/self/maps", encoding="ascii") as f:
        return sum("memfd:tile" in line for line in f)


def test_loaders(scan, tmp_path, device, monkeypatch):
    """Processes load what this one loads, and memory is given back and reused; it is pinned before it is seen, and undone."""
    job = watched(scan, tmp_path / "out", 60)
    keys, pinned, many = job.tiles(), {}, []

    def pin(memory):
        begin = memory.ctypes.data
        assert begin not in pinned
        many.append(memory.nbytes)
        pinned[begin] = memory.nbytes
        return lambda: pinned.pop(begin)

    before, at_most = mapped(), job.points_at_most(keys)
    with loaders(job, keys, 2, pin) as loads:
        assert isinstance(loads, Processes) and mapped() == before + 4
        for key in keys:
            tile, expected = loads.result(key, loads.submit(key)), Job.load(job, key)
            assert len(tile) == len(expected) <= at_most
            for name, array in vars(expected).items():
                assert name in ("key", "grid") or np.array_equal(getattr(tile, name), array), name
            spans = [(x.ctypes.data, x.ctypes.data + x.nbytes) for x in vars(tile).values() if isinstance(x, np.ndarray)]
            inside = [any(b <= first and last <= b + n for b, n in pinned.items()) for first, last in spans]
            assert all(inside) and len(inside) == 6
            loads.release(key)
        waiting = [(key, loads.submit(key)) for key in keys[:4]]
        with pytest.raises(IndexError):
            loads.submit(keys[4])  # there is no fifth piece
        assert all(loads.result(*w) is not None for w in waiting)
        pids = [p.pid for p in loads.pool._processes.values()]
    del tile
    assert mapped() == before and not pinned and 4 <= len(many) < len(keys) and len(pids) in (1, 2)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    for name in ("no memory", "none of this kind"):
        with monkeypatch.context() as m:
            if name == "no memory":
                m.setattr(os, "memfd_create", lambda _: os.open("/dev/null", os.O_RDONLY))
            else:
                m.delattr(os, "memfd_create")
            with loaders(job, keys, 2) as loads:
                assert isinstance(loads, Threads) and len(loads.result(keys[-1], loads.submit(keys[-1]))) == len(expected)
    with pytest.raises(MemoryError, match="a tile takes"):
        Job.load(job, keys[0], Room(np.empty(100, np.uint8)).empty)
    assert len(Job.load(job, keys[-1], Room(np.empty(bytes_of(at_most), np.uint8)).empty)) == len(expected)


def test_pin(device):
    """CUDA copies from memory that is pinned; a refusal is no error of what comes after."""
    segment = Segment(torch.nn.Identity(), str(device))
    memory = np.arange(1 << 20, dtype=np.int32).view(np.uint8)
    undo = segment.pin(memory)
    if device.type == "cpu":
        assert undo is None
        return
    here = torch.from_numpy(memory)
    for _ in range(2):
        assert undo is not None and here.is_pinned()
        assert segment.pin(memory) is None  # it is already
        assert torch.equal((here.to(device) + 1).cpu(), here + 1)
        torch.cuda.synchronize()
        undo()
        assert not here.is_pinned()
        undo = segment.pin(memory)
    undo()


def test_loader_ends(scan, tmp_path, device):
    """A loader that is killed, or fails, takes nothing along: the result is whole and the same, and no process is left."""
    whole = Job.create(scan, tmp_path / "whole", 1.0, 60, 10, keep_logits=True)
    run(whole, lambda: by_height, show=False)
    job = watched(scan, tmp_path / "out", 60)
    keys = job.tiles()
    (tmp_path / "out" / "dies_{}_{}".format(*keys[3])).touch()
    (tmp_path / "out" / "fails_{}_{}".format(*keys[-1])).touch()
    before, said = mapped(), []

    def label(tile):
        said.append(tile.key)
        return by_height(tile)

    run(job, lambda: label, show=False, readers=2)
    assert_same(job, whole)
    who = {(int(i), int(j)): loader for i, j, loader, _ in Watched.seen(job)}
    assert said == keys and who[keys[3]] == who[keys[-1]] == "here" and who[keys[0]] == who[keys[-2]] == "loader"
    assert mapped() == before and job.is_written(0) and job.is_written(1)
    again = watched(scan, tmp_path / "again", 60)

    def ends(tile):
        if tile.key == keys[2]:
            raise KeyboardInterrupt
        return by_height(tile)

    with pytest.raises(KeyboardInterrupt):
        run(again, lambda: ends, show=False, readers=2)
    assert [k for k in keys if again.is_labelled(k)] == keys[:2] and not children()
    run(again, lambda: by_height, show=False, readers=2)
    assert_same(again, whole)


def children(pid=None):
    """Processes of spawn that a process started and that still are."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == (pid or os.getpid()) and state != "Z" and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            pass
    return found


KILLED = """
import sys, time
from pathlib import Path
from spops.tiles import Job, run

def label(tile):
    Path(sys.argv[1], "at_work").touch()
    time.sleep(60)

if __name__ == "__main__":
    run(Job.create(sys.argv[2:], sys.argv[1], 1.0, 60, 10, keep_logits=True), lambda: label, show=False, readers=2)
"""


def test_killed(scan, tmp_path, device):
    """A job that is killed leaves no process, hence no memory; it goes on."""
    (tmp_path / "job.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "out"), *scan]
    path = os.pathsep.join([str(Path(spops.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "out" / "at_work").exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        loading = children(process.pid)
    finally:
        process.kill()
        process.wait()
    assert len(loading) == 2
    end = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3] for pid in loading):
        assert time.monotonic() < end, f"{loading} are left"
        time.sleep(0.05)
    job = Job.create(scan, tmp_path / "out", 1.0, 60, 10, keep_logits=True)
    run(job, lambda: by_height, show=False)
    assert job.is_written(0) and job.is_written(1)


ENDS = """
import os, signal, sys
from spops.tiles import Job, run
from test_tiles import by_height

def label(tile):
    if tile.key == (8, 81):
        os.kill(os.getpid(), signal.SIGKILL)
    return by_height(tile)

run(Job.create(sys.argv[2:], sys.argv[1], 1.0, 60, 10, keep_logits=True), lambda: label, show=False, retries=1)
"""


def test_a_tile_ends_its_process(scan, tmp_path, device):
    """The command that is started again goes past a tile that ended it as often as it may."""
    job = Job.create(scan, tmp_path / "out", 1.0, 60, 10, keep_logits=True)
    for i in range(2):
        job.cut(i)
    bad = job.tiles()[1]
    (tmp_path / "job.py").write_text(ENDS.replace("(8, 81)", repr(bad)))
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "out"), *scan]
    path = os.pathsep.join([str(Path(spops.__file__).parents[1]), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = [subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False) for _ in range(3)]
    assert [e.returncode for e in ended] == [-signal.SIGKILL, -signal.SIGKILL, 1]
    assert f"1 parts failed\n{bad}: its process ended each time" in ended[2].stderr
    assert [k for k in job.tiles() if not job.is_labelled(k)] == [bad]
    run(job, lambda: by_height, show=False)
    assert job.is_written(0) and job.is_written(1)


def test_crop_independent_is_of_its_thread():
    """Plans of another thread are as they would be without."""
    from concurrent.futures import ThreadPoolExecutor

    from spops._layers import plans_are_crop_independent as now

    with ThreadPoolExecutor(1) as pool:
        assert not now()
        with spops.crop_independent():
            assert now() and not pool.submit(now).result()
            with spops.crop_independent():
                assert now()
            assert now()
        assert not now()
        with pytest.raises(KeyError), spops.crop_independent():
            raise KeyError
        assert not now()


def test_refusals(scan, tmp_path, device):
    for numbers, text in {
        (0, 1, 1): "voxel_m is 0, expected a finite number of more than 0", (math.inf, 1, 1): "voxel_m is inf",
        (1.0, 0, 1): "tile is 0, expected a whole number of voxels, 1 to 2", (1.0, 1, math.inf): "halo is inf", (1.0, 1, 1.5): "halo is 1.5",
        (1.0, 1, -1): "halo is -1, expected a whole number of voxels, 0 to", (1.0, 1, 1, (0.0, 0.0)): "origin_m is .*, expected three finite",
        (1.0, 1, 1, (0.0, math.nan, 0.0)): "origin_m is", (1.0, 1, math.nan): "halo is nan",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"Grid: {text}"):
            Grid(*numbers)
    twin = tmp_path / "twin"
    twin.mkdir()
    (twin / "a.copc.laz").write_bytes(Path(scan[0]).read_bytes())
    for files, out, voxel_m, tile_m, text in (
        ([scan[0], scan[0]], "out", 1.0, 50, "have one name, a.laz"), ([scan[0], twin / "a.copc.laz"], "out", 1.0, 50, "have one name, a.laz"),
        ([], "out", 1.0, 50, "files is"), (scan[0], "out", 1.0, 50, "files is"), (scan, "out", 0, 50, "voxel_m is 0"),
        (scan, "out", 1.0, -5, "tile_m is -5, expected a finite number of more than 0"), (scan, "out", 1.0, math.nan, "tile_m is nan"),
        (scan, "out", 1e-300, 50, "Grid: tile is 4.61168601843e.18"), (scan, "", 1.0, 50, "a.laz is there, and not by this job"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            Job.create(files, tmp_path / out, voxel_m, tile_m, 10)
    assert {p.name for p in tmp_path.iterdir()} == {"a.laz", "b.las", "twin"}  # nothing was written
    with pytest.raises(ValueError, match=r"Grid: points\[0\]\[0\] lies in voxel 1e.14, expected"):
        Grid(1e-9, 1, 1).voxels(np.array([[1e5, 0.0, 0.0]]))
    job = Job.create(scan[:1], tmp_path / "out", 1.0, 50, 10)
    with pytest.raises(ValueError, match="engine is 'dask', expected local or ray"):
        run(job, lambda: by_height, "dask")
    for name, value in dict(retries=-1, workers=0, readers=0, cpus=-1.0, gpus=math.nan, memory_bytes=0).items():
        with pytest.raises(ValueError, match=f"run: {name} is {value}, expected"):
            run(job, lambda: by_height, **{name: value})
    for part in (job.tiles, lambda: job.label((0, 0), by_height), lambda: job.write(0), lambda: job.is_complete(0)):
        with pytest.raises(ValueError, match="a.laz is not cut, expected all files to be"):
            part()
    with pytest.raises(Failed, match=r"labels have shape \[3\], expected \["):
        run(job, lambda: lambda tile: (np.zeros(3), None), retries=0, show=False)
    with pytest.raises(ValueError, match="points have no label"):
        for key in job.tiles()[1:]:
            job.label(key, by_height)
        job._part(job.tiles()[0]).touch()
        np.savez(job._part(job.tiles()[0]), **dict.fromkeys(("files", "counts", "index", "labels"), np.zeros(0, np.int64)))
        job.write(0)


def test_what_a_function_says(scan, tmp_path, device):
    """Labels that the field cannot have, and arrays of other shapes, are errors, not other labels."""
    job = Job.create(scan[1:], tmp_path / "out", 1.0, 1000, 10, keep_logits=True, field="return_number")
    job.cut(0)
    (key,) = job.tiles()
    n = job.files[0].num_points
    for given, error, text in (
        ((np.full(n, 300), None), ValueError, r"labels\[0\] is 300, expected a whole number from 0 to 15 for return_number"),
        ((np.full(n, -1), None), ValueError, r"labels\[0\] is -1"), ((np.r_[np.zeros(n - 1), np.nan], None), ValueError, rf"labels\[{n - 1}\] is nan"),
        ((np.full(n, 1.5), None), ValueError, r".* is 1\.5"), ((np.zeros((n, 1)), None), ValueError, rf"labels have shape \[{n}, 1\], expected \[{n}\]"),
        ((np.zeros(n), np.zeros((3, 4))), ValueError, rf"logits have shape \[3, 4\], expected \[{n}, classes\]"),
        (np.zeros(n), TypeError, "the function gave ndarray, expected two values"), (None, TypeError, "the function gave NoneType"),
    ):  # fmt: skip
        with pytest.raises(error, match=rf"tile \(\d+, \d+\): {text}"):
            job.label(key, lambda tile: given)
        assert not job.is_labelled(key)
    job.label(key, lambda tile: (torch.arange(n, device="cpu") % 16, torch.ones(n, 2, device="cpu")))
    job.write(0)
    laspy = pytest.importorskip("laspy")
    assert np.array_equal(np.asarray(laspy.read(job.target(0)).return_number), np.arange(n) % 16)
    for field, text in {"X": "field is 'X', the coordinates", "z": "field is 'z'", "": "field is ''", "n" * 33: "expected a name of 1 to 32 bytes"}.items():
        with pytest.raises(ValueError, match=text):
            Job.create(scan, tmp_path / "new", 1.0, 50, 10, field=field)


def test_segment_refuses(scan, tmp_path, device):
    """Features and logits of another shape, and NaN, are errors that say so, and no labels."""
    job = Job.create(scan[1:], tmp_path / "out", 1.0, 1000, 10)
    job.cut(0)
    (key,) = job.tiles()

    class Net(torch.nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.forward = forward

    def one_nan(x):
        feats = x.feats.clone()
        feats[7, 1] = math.nan
        return x.replace(feats)

    for forward, features, text in (
        (lambda x: {"logits": x}, None, r"the network gave dict, expected logits \[[0-9]+ voxels, 1 to 256 classes\]"),
        (lambda x: x.feats[:5], None, r"the network gave \[5, 4\]"), (lambda x: x.feats[:, :0], None, r"the network gave \[[0-9]+, 0\]"),
        (lambda x: x.feats.repeat(1, 65), None, r"the network gave \[[0-9]+, 260\]"), (one_nan, None, r"logits of 1 of [0-9]+ voxels are NaN, the first at \["),
        (lambda x: x, lambda tile, where: tile.intensity.astype(np.float32), r"features are \[[0-9]+\], expected \[[0-9]+, C\]"),
        (lambda x: x, lambda tile, where: torch.ones(3, 4), r"features are \[3, 4\]"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"Segment: {text}"):
            job.label(key, Segment(Net(forward), str(device), features=features))
        assert not job.is_labelled(key)
    job.label(key, Segment(Net(lambda x: x.feats), str(device)))
    assert job.is_labelled(key)


def test_odd_files(tmp_path, device):
    """Files without points and with one; points on borders of tiles, twice in one place, below 0; a halo beyond everything."""
    laspy = pytest.importorskip("laspy")
    lines = np.arange(-60, 61, 20.0)
    places = np.stack(np.meshgrid(lines, lines, [0.0]), -1).reshape(-1, 3)
    clouds = {"none.laz": places[:0], "none.las": places[:0], "one.laz": places[:1], "twice.las": np.repeat(places[5:7], 100, 0), "border.laz": places}
    files = [write_laz(tmp_path / name, points - [0.3, 0.7, 20.0]) for name, points in clouds.items()]
    found = {}
    for halo in (0, 41, 10**9):
        job = Job.create(files, tmp_path / f"out{halo}", 1.0, 20, halo, origin_m=(494000, 4878000, 0), keep_logits=True)
        run(job, lambda: small(device), show=False, readers=2, workers=2)
        found[halo] = np.concatenate([job.labels_of(i)[1] for i in (2, 3, 4)])
        assert [len(laspy.read(job.target(i)).x) for i in range(5)] == [len(points) for points in clouds.values()]
        assert len(job.tiles()) == 49 and all(np.array_equal(job.load(k).voxels[job.load(k).is_core, :2] // 20, [k] * job.load(k).is_core.sum()) for k in job.tiles()[::9])
    assert np.array_equal(found[41], found[10**9])
    nothing = Job.create(files[:2], tmp_path / "nothing", 1.0, 20, 5)
    run(nothing, lambda: by_height, show=False)
    assert nothing.tiles() == [] and nothing.is_written(0) and nothing.is_written(1)
    far = write_laz(tmp_path / "far.las", np.array([[0, 0, 0.0], [0, 0, 1e5]]))
    job = Job.create([far], tmp_path / "far", 1e-5 * 4.3, 1e-3, 0)
    with pytest.raises(Failed, match=r"cut .*far.las: (.|\n)*points\[0\]\[0\] lies in voxel 1.149e.10, expected"):
        run(job, lambda: by_height, show=False)
    job = Job.create([far], tmp_path / "deep", 0.002, 10, 0, origin_m=(494000, 4878000, 0))
    with pytest.raises(Failed, match="50000000 voxels along an axis, expected less than 2.23"):
        run(job, lambda: small(device), show=False, retries=0)


def test_damaged_files(scan, tmp_path, device):
    """A file that ends too early fails the pass that reads it, by its name, and leaves nothing that would be taken for its points."""
    for path, end in ((scan[0], 40000), (scan[1], 40007), (scan[1], 375 + 30 * 1000)):
        bad = tmp_path / ("short" + Path(path).suffix)
        bad.write_bytes(Path(path).read_bytes()[:end])
        out = tmp_path / f"out{end}"
        job = Job.create([bad, scan[0]], out, 1.0, 50, 10)
        with pytest.raises(Failed, match=f"1 parts failed\ncut {bad}: "):
            run(job, lambda: by_height, show=False, retries=0)
        assert not job.is_cut(0) and job.is_cut(1) and not list((out / "parts").iterdir())
        bad.unlink()
    text = tmp_path / "text.laz"
    text.write_text("no points")
    with pytest.raises(ValueError, match="text.laz: Invalid file signature"):
        Job.create([text], tmp_path / "out", 1.0, 50, 10)
    for scales in ((0.0, 1.0, 1.0), (math.nan, 1.0, 1.0), (1.0, 1.0, math.inf)):
        odd = bytearray(Path(scan[1]).read_bytes())
        odd[131:155] = struct.pack("<3d", *scales)
        (tmp_path / "odd.las").write_bytes(odd)
        with pytest.raises(ValueError, match=r"odd.las: scales are \("):
            Job.create([tmp_path / "odd.las"], tmp_path / "out", 1.0, 50, 10)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", range(11))
@pytest.mark.parametrize("kind", ["las", "laz"])
def test_point_formats(tmp_path, device, form, kind):
    """Copies have every dimension as it was but the labels, whatever scales there are: a negative one too."""
    laspy, rng = pytest.importorskip("laspy"), np.random.default_rng(form)
    pytest.importorskip("lazrs")
    header = laspy.LasHeader(point_format=form, version="1.4" if form >= 6 else "1.3" if form >= 4 else "1.2")
    header.scales, header.offsets = (-0.01, 0.02, 0.001), (1e6, -5e6, 3.0)
    header.add_extra_dims([laspy.ExtraBytesParams("sure", "f4"), laspy.ExtraBytesParams("three", "3u2")])
    before = laspy.LasData(header, laspy.ScaleAwarePointRecord.zeros(3000, header=header))
    for name in before.point_format.dimension_names:
        wide = before.point_format.dimension_by_name(name).num_elements
        before[name] = rng.integers(-9000, 9000, 3000) if name in "XYZ" else rng.integers(0, 2, (3000, 3) if wide == 3 else 3000)
    path = tmp_path / f"a.{kind}"
    before.write(str(path))
    field = ("classification", "guess", "user_data")[form % 3]
    create = lambda: Job.create([path], tmp_path / "out", 2.0, 70, 5, keep_logits=True, field=field)
    if kind == "laz" and form in (9, 10):
        with pytest.raises(ValueError, match=f"a.laz: point format {form} of LAZ has wave packets"):
            create()
        return
    job = create()
    run(job, lambda: lambda tile: ((tile.index % 29).astype(np.uint8), tile.xyz), show=False)
    after = laspy.read(job.target(0))
    for name in before.point_format.dimension_names:
        if name != field:
            assert np.array_equal(np.asarray(before[name]), np.asarray(after[name])), name
    assert np.array_equal(np.asarray(after[field]), np.arange(3000) % 29) and np.array_equal(job.labels_of(0)[1], laspy.read(path).xyz)
    assert np.array_equal(after.header.scales, header.scales) and len(job.tiles()) > 3


def test_half_written_is_swept(scan, tmp_path, device):
    """What a process left half written when it was killed goes with the next run, and is never taken for a part."""
    job = Job.create(scan, tmp_path / "out", 1.0, 50, 10, keep_logits=True)
    half = [tmp_path / "out" / name for name in ("cut/.77.0", "parts/.77.0_0.npz", ".77.a.laz")]
    half[0].mkdir()
    (half[0] / "0_0.bin").write_bytes(bytes(POINT.itemsize))
    half[1].touch(), half[2].touch()
    assert not job.is_cut(0)
    run(job, lambda: by_height, show=False)
    assert not any(p.exists() for p in half)
    whole = Job.create(scan, tmp_path / "whole", 1.0, 50, 10, keep_logits=True)
    run(whole, lambda: by_height, show=False)
    assert_same(job, whole)

    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "new") as part:
        part.write_text("half")
        1 / 0
    assert not [p for p in tmp_path.iterdir() if "new" in p.name]


def test_labels_cannot_be_kept(scan, tmp_path, device):
    """Labels that were not written are made and written again."""
    whole = Job.create(scan, tmp_path / "whole", 1.0, 60, 10, keep_logits=True)
    run(whole, lambda: by_height, show=False)
    for readers in (1, 2):
        job = watched(scan, tmp_path / f"out{readers}", 60)
        first, bad = ("{}_{}".format(*key) for key in job.tiles()[:2])
        (Path(job.out) / f"keep_{first}_once").touch()
        (Path(job.out) / f"keep_{bad}_always").touch()
        with pytest.raises(Failed, match="1 parts failed(.|\n)*not this one"):
            run(job, lambda: by_height, show=False, readers=readers, retries=1)
        assert [k for k in job.tiles() if not job.is_labelled(k)] == [job.tiles()[1]]
        with pytest.raises(Failed, match="1 parts failed\n.*OSError.*not this one"):
            run(job, lambda: by_height, show=False, readers=readers, retries=0)
        (Path(job.out) / f"keep_{bad}_always").unlink()
        run(job, lambda: by_height, show=False, readers=readers)
        assert_same(job, whole)


def test_one_at_a_time(scan, tmp_path, device):
    """Two processes on one job would take parts from each other."""
    job = Job.create(scan, tmp_path / "out", 1.0, 50, 10)

    def label(tile):
        with pytest.raises(ValueError, match=f"Job: another process works in {job.out}"):
            run(job, lambda: by_height, show=False)
        return by_height(tile)

    run(job, lambda: label, show=False)
    assert job.is_written(0) and job.is_written(1)
    (Path(job.out) / "a.laz").unlink()
    run(job, lambda: by_height, show=False)
    assert job.is_written(0)


def test_file_worker_ends(scan, tmp_path, device):
    """A process that cuts or writes is killed: its file is tried again, and other files are done; one that always ends is given up."""
    more = [*scan, write_laz(tmp_path / "c.laz", airborne(3000))]
    for dies, where in (("once", "cut"), ("once", "write"), ("always", "write")):
        job = Watched.create(more, tmp_path / f"{dies}_{where}", 1.0, 60, 10, keep_logits=True)
        (tmp_path / f"{dies}_{where}" / f"{where}_1_{dies}").touch()
        if dies == "once":
            run(job, lambda: by_height, show=False, workers=2)
            assert all(map(job.is_written, range(3)))
        else:
            with pytest.raises(Failed, match=f"1 parts failed\nwrite {scan[1]}: its process ended each time"):
                run(job, lambda: by_height, show=False, workers=2, retries=1)
            assert [job.is_written(i) for i in range(3)] == [True, False, True]


def test_command(scan, tmp_path, device, capsys):
    from spops.tiles.__main__ import main

    example("minkunet")
    arguments = [*scan, "--out", str(tmp_path / "out"), "--network", f"{EXAMPLES}/minkunet.py:small", "--voxel", "2", "--tile", "150", "--logits"]
    if device.type == "cuda":
        arguments += ["--device", "cuda", "--dtype", "float16"]
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "2 files, tiles of 76 voxels, halo of 41 (82 m)" in said and "write: 2 of 2" in said
    files = Job.create(scan, tmp_path / "out", 2.0, 150, 41, keep_logits=True)
    whole = Job.create(scan, tmp_path / "whole", 2.0, 100000, 41, keep_logits=True)
    run(whole, lambda: small(device), show=False)
    assert_same(files, whole)
    assert main(arguments) == 0  # nothing is left to do
    assert main([*arguments, "--tile", "70", "--quiet", "--out", str(tmp_path / "bad"), "--retries", "0", "--columns", "4", "--halo", "0"]) == 0
    weights = tmp_path / "weights.pt"
    torch.save(example("minkunet").small().state_dict(), weights)
    capsys.readouterr()
    assert main([*arguments, "--checkpoint", str(weights)]) == 2  # labels of another network
    assert "job.json says another job (labels_by), expected the same one" in capsys.readouterr().err


def test_command_refuses(scan, tmp_path, device, capsys, monkeypatch):
    """Each argument that cannot be is named, with its limit, before anything is written."""
    from spops.tiles.__main__ import main

    example("minkunet")
    (tmp_path / "empty").mkdir()
    base = [*scan, "--out", str(tmp_path / "out"), "--network", f"{EXAMPLES}/minkunet.py:small", "--voxel", "2", "--tile", "150", "--halo", "4"]
    for more, text in {
        ("--voxel", "0"): "argument --voxel: '0', expected a finite number of more than 0", ("--voxel", "nan"): "argument --voxel: 'nan'",
        ("--tile=-5",): "argument --tile: '-5', expected", ("--tile", "inf"): "argument --tile: 'inf'", ("--halo=-1",): "--halo: '-1', expected a finite number of 0 or more",
        ("--halo", "1e20"): "Grid: halo is", ("--retries=-1",): "argument --retries: '-1', expected a whole number of 0 or more",
        ("--workers", "0"): "argument --workers: '0'", ("--readers", "1.5"): "argument --readers: '1.5'", ("--memory", "0"): "argument --memory: '0'",
        ("--columns", "0"): "argument --columns: '0'", ("--origin", "nan", "0", "0"): "origin_m is", ("--field", "y"): "field is 'y'",
        ("--device", "nowhere"): "--device is nowhere: ", ("--network", "minkunet"): "--network is 'minkunet', expected FILE.py:NAME",
        ("--network", "no.such:NAME"): "--network is 'no.such:NAME'", ("--network", "none.py:NAME"): "none.py", ("--checkpoint", "none.pt"): "none.pt",
        ("--network", "json:NAME"): "--network: json has no 'NAME'", ("--out", scan[0]): "a.laz", ("--out", str(tmp_path)): "a.laz is there, and not by this job",
    }.items():  # fmt: skip
        try:
            status = main([*base, *more])
        except SystemExit as error:
            status = error.code
        said = capsys.readouterr().err
        assert status == 2 and text in said and "Traceback" not in said, (more, said)
    for files, text in (([str(tmp_path / "empty")], "a folder without LAS and LAZ files"), ([str(tmp_path / "none.laz")], "none.laz")):
        assert main([*files, *base[len(scan) :]]) == 2 and text in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, real=importlib.util.find_spec: None if name == "ray" else real(name))
    assert main([*base, "--engine", "ray"]) == 2 and "--engine ray needs Ray: pip install 'spops[tiles]'" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"a.laz", "b.las", "empty"}


def test_halo_of_the_command(device):
    """A network that reads further than its layers say is refused: attention by rank, a mean of all rows, windows that are wider than the halo."""
    from spops.tiles.__main__ import Refused, halo_of

    if device.type == "cuda":
        pytest.skip("the command asks on the CPU")

    class Net(torch.nn.Module):
        def __init__(self, how):
            super().__init__()
            self.how, self.conv, self.norm = how, snn.SubMConv3d(4, 16, 3), snn.BatchNorm(16)

        def forward(self, x):
            x = self.norm(self.conv(x))
            if self.how == "mean":
                return x.replace(x.feats - x.feats.mean(0))
            if self.how == "patches":
                return x.replace(F.attention(x.feats, x.feats, x.feats, F.patches_order(x.coords[:, 1:].float(), patch_rows=64)))
            if self.how == "windows":
                return x.replace(F.attention(x.feats, x.feats, x.feats, F.patches_grid(x.coords[:, 1:].contiguous(), window=[48, 48, 0], bits=10)))
            return snn.ReLU()(x)

    assert halo_of(Net("none").eval(), 4) == 1
    for how in ("mean", "patches", "windows"):
        with pytest.raises(Refused, match="--halo: the network reads further than the 1 voxels of its layers"):
            halo_of(Net(how).eval(), 4)
    assert halo_of(example("minkunet").MinkUNet(width=0.125).eval(), 4) == 197


def test_commands_of_the_page(device):
    from spops.tiles.__main__ import parse

    page = EXAMPLES.parents[1] / "docs" / "tiles.md"
    if not page.is_file():
        pytest.skip("docs/tiles.md: this is no checkout")
    commands = re.findall(r"^python -m spops.tiles (.*)$", page.read_text(), re.M)
    assert commands and all(parse(shlex.split(c)).network for c in commands)
    with pytest.raises(SystemExit):
        parse(["a.laz", "--no-such-option"])


def test_dask_of_the_page(scan, tmp_path, device, monkeypatch):
    """The page's functions for another engine, as they stand there, by threads and by processes."""
    dask = pytest.importorskip("dask")
    page = EXAMPLES.parents[1] / "docs" / "tiles.md"
    if not page.is_file():
        pytest.skip("docs/tiles.md: this is no checkout")
    (block,) = re.findall(r"^```text\n(import dask\n.*?)^```$", page.read_text(), re.M | re.S)
    for ours, here in (('"cuda"', repr(str(device))), ("voxel_m=0.1, tile_m=50, halo_voxels=197", "voxel_m=1.0, tile_m=130, halo_voxels=41")):
        assert block.count(ours) == 1
        block = block.replace(ours, here)
    whole = one_tile(scan, tmp_path / "whole", device)
    monkeypatch.chdir(tmp_path)
    with dask.config.set(scheduler="threads", num_workers=2):
        names = dict(files=scan, net=example("minkunet").small())
        exec(compile(block, str(page), "exec"), names)
    job = names["job"]
    assert len(job.tiles()) > 1 and all(np.array_equal(job.labels_of(i)[0], whole.labels_of(i)[0]) for i in range(2))
    assert job.is_written(0) and job.is_written(1)


# ---- Ray ----------------------------------------------------------------------------------------


class DiesOnce:
    """Makes the function of a worker, whose process ends when it is given one of the tiles for the first time."""

    def __init__(self, key, marker, always=None):
        self.key, self.marker, self.always, self.path = key, str(marker), always, str(Path(__file__).parent)

    def __call__(self):
        sys.path.insert(0, self.path)
        torch.set_num_threads(1)
        label = small()

        def function(tile):
            if tile.key == self.always or tile.key == self.key and not os.path.exists(self.marker):
                Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return label(tile)

        return function


@contextlib.contextmanager
def two_ray_workers(ray):
    """A cluster of this process's own, whose workers import this module."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=runtime_env(env_vars={"PYTHONPATH": path}))
    try:
        try:
            ray.get(ray.remote(lambda: None).remote(), timeout=90)
        except ray.exceptions.GetTimeoutError:
            pytest.skip("Ray's workers do not start here")
        yield
    finally:
        ray.shutdown()


def test_ray(scan, tmp_path, device):
    """Two workers, one of them killed in the middle: the result is whole and the same. A tile that kills each one is given up."""
    if device.type == "cuda":
        pytest.skip("workers of the CPU, beside whichever device there is")
    ray = pytest.importorskip("ray")
    whole = one_tile(scan, tmp_path / "whole")
    job = Job.create(scan, tmp_path / "out", 1.0, 130, HALO_VOXELS, keep_logits=True)
    keys = Job.create(scan, tmp_path / "keys", 1.0, 130, 0)
    keys.cut(0), keys.cut(1)
    keys = keys.tiles()
    with two_ray_workers(ray):
        make = DiesOnce(keys[len(keys) // 2], tmp_path / "died", always=keys[-1])
        with pytest.raises(Failed, match="1 parts failed\n.*its process ended each time"):
            run(job, make, "ray", workers=2, show=False, retries=1)
        assert Path(make.marker).exists()
        assert [k for k in job.tiles() if not job.is_labelled(k)] == [keys[-1]]
        make.always = None
        run(job, make, "ray", workers=1, show=False, memory_bytes=2**28)
    assert_same(job, whole)
    assert job.is_written(0) and job.is_written(1)


def test_ray_gives_up(scan, tmp_path, device):
    """A tile that kills each process that loads it, and a file that kills each one that cuts it, are given up; Ray would go on for good."""
    ray = pytest.importorskip("ray")
    if device.type == "cuda" or ray.is_initialized():
        pytest.skip("a cluster that is started here, beside whichever device there is")
    with two_ray_workers(ray):
        job = Watched.create(scan, tmp_path / "out", 1.0, 130, 10)
        ends = tmp_path / "out" / "cut_1_always"
        ends.touch()
        with pytest.raises(Failed, match=f"1 parts failed\ncut {scan[1]}: its process ended each time"):
            run(job, lambda: by_height_anywhere(), "ray", retries=1, show=False)
        assert job.is_cut(0) and not job.is_cut(1)
        ends.unlink()
        job.cut(1)
        bad = job.tiles()[1]
        (tmp_path / "out" / "load_{}_{}_always".format(*bad)).touch()
        with pytest.raises(Failed, match=r"1 parts failed\n\(.*its process ended each time"):
            run(job, lambda: by_height_anywhere(), "ray", retries=1, show=False)
        assert [k for k in job.tiles() if not job.is_labelled(k)] == [bad]


def by_height_anywhere():
    """A function that processes without this module can have."""
    import numpy

    return lambda tile: (numpy.clip(tile.xyz[:, 2] - 100, 0, 31).astype(numpy.uint8), None)


def test_ray_has_no_such_worker(scan, tmp_path, device):
    """What no worker can have is an error, not a wait for good."""
    ray = pytest.importorskip("ray")
    if device.type == "cuda" or ray.is_initialized() or os.environ.get("RAY_ADDRESS"):
        pytest.skip("a cluster that is started here, beside whichever device there is")
    job = Job.create(scan, tmp_path / "out", 1.0, 130, 0)
    with pytest.raises(ValueError, match="run: cpus is 5000, expected at most the [0-9]+ that there are"):
        run(job, lambda: by_height, "ray", cpus=5000.0, show=False)
    assert not ray.is_initialized() and not job.is_cut(0)


# ---- COPC ---------------------------------------------------------------------------------------


def write_copc(path, points):
    """A COPC file by hand: the points of an octree of two levels, a chunk of LAZ for each node, and the list of nodes."""
    laspy = pytest.importorskip("laspy")
    lazrs = pytest.importorskip("lazrs")
    write_laz(path.with_suffix(".las"), points, intensity=9)
    plain = path.with_suffix(".las").read_bytes()
    with laspy.open(path.with_suffix(".las")) as f:
        start, size, xyz = f.header.offset_to_point_data, f.header.point_format.size, f.read().xyz
    low, half = xyz.min(0), float((xyz.max(0) - xyz.min(0)).max() / 2)
    octant = (xyz >= low + half).astype(int)
    node = np.where(np.arange(len(xyz)) % 4 == 0, 0, 1 + octant @ np.array([4, 2, 1]))
    laz = lazrs.LazVlr.new_for_compression(6, 0, True)
    data = laz.record_data()
    vlr = lambda user, number, body, form: struct.pack(form, 0, user, number, len(body), b"") + body
    laszip = vlr(b"laszip encoded", 22204, data, "<H16sHH32s")
    at = 375 + 54 + 160 + len(laszip)
    out = io.BytesIO(plain[:375] + bytes(at - 375))
    out.seek(at)
    compressor = lazrs.LasZipCompressor(out, laz)
    compressor.reserve_offset_to_chunk_table()
    entries, order = [], []
    for n in np.unique(node):
        own = np.flatnonzero(node == n)
        begin = out.tell()
        compressor.compress_many(b"".join(plain[start + size * i : start + size * (i + 1)] for i in own))
        compressor.finish_current_chunk()
        key = (0, 0, 0, 0) if n == 0 else (1, (n - 1) >> 2 & 1, (n - 1) >> 1 & 1, (n - 1) & 1)
        entries.append(struct.pack("<iiiiQii", *key, begin, out.tell() - begin, len(own)))
        order.append(own)
    compressor.done()
    out.seek(0, io.SEEK_END)
    end, pages = out.tell(), b"".join(entries)
    out.write(vlr(b"copc", 1000, pages, "<H16sHQ32s") + pages[:0])
    info = struct.pack("<5d2Q2d88s", *(low + half), half, half / 64, end + 60, len(pages), 0.0, 0.0, b"")
    out.seek(375)
    out.write(vlr(b"copc", 1, info, "<H16sHH32s") + laszip)
    for place, form, value in ((96, "<I", at), (100, "<I", 2), (104, "<B", 6 | 128), (235, "<Q", end), (243, "<I", 1)):
        out.seek(place)
        out.write(struct.pack(form, value))
    path.write_bytes(out.getvalue())
    with laspy.CopcReader.open(str(path)) as f:
        assert len(f.query()) == len(xyz)  # it is one
    return str(path), points[np.concatenate(order)]


def test_copc(tmp_path, device):
    """Points of a COPC file, in the order that they lie in; the copy is a LAZ file in the same order."""
    laspy = pytest.importorskip("laspy")
    path, points = write_copc(tmp_path / "a.copc.laz", airborne(20000))
    job = Job.create([path], tmp_path / "out", 1.0, 60, 20, keep_logits=True)
    run(job, lambda: by_height, show=False)
    after = laspy.read(job.target(0))
    assert job.target(0).name == "a.laz" and np.abs(after.xyz - points - [494000.3, 4878000.7, 120.0]).max() < 0.00051
    assert np.array_equal(np.asarray(after.classification), np.clip(after.xyz[:, 2] - 100, 0, 31).astype(np.uint8))
    assert (np.asarray(after.intensity) == 9).all()
    plain = Job.create([write_laz(tmp_path / "b.laz", points, intensity=9)], tmp_path / "plain", 1.0, 100, 20, keep_logits=True)
    run(plain, lambda: by_height, show=False)
    assert_same(job, plain)
