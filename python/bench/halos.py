# SPDX-License-Identifier: Apache-2.0
"""How many rows ranks own and read of each other: partitions and halos of the library, for 2 to 64 parts of a cloud.

    python python/bench/halos.py [--gyroid 1e6] [--scan FILE.npy:VOXEL_M ...] [--parts 2,4,8,16,32,64] [--output halos.jsonl]

Parts are ranks that are threads, on the CPU: nothing is estimated. Prints a table of the finest level and of all
levels; a line of JSON for each cloud, number of parts and level. With one part also the pairs of a 3 x 3 x 3
convolution within each level.
"""
import argparse
import json
import threading
import time
from pathlib import Path

import numpy as np
import torch

import spops.functional as F
from spops import comm, ranks


def gyroid(voxels):
    """The surface sin x cos y + sin y cos z + sin z cos x = 0, one period: voxels nearer to it than 0.75 of a voxel."""
    side = max(round((voxels / 4.645) ** 0.5), 8)
    step = 2 * np.pi / side
    s, c = np.sin(step * np.arange(side)), np.cos(step * np.arange(side))
    rows = []
    for x in range(side):
        sy, cy, sz, cz = s[:, None], c[:, None], s[None, :], c[None, :]
        f = s[x] * cy + sy * cz + sz * c[x]
        slope = np.sqrt((c[x] * cy - sz * s[x]) ** 2 + (cy * cz - s[x] * sy) ** 2 + (cz * c[x] - sy * sz) ** 2)
        y, z = np.nonzero(np.abs(f) < 0.75 * step * slope)
        rows.append(np.stack([np.zeros_like(y), np.full_like(y, x), y, z], 1).astype(np.int32))
    return torch.from_numpy(np.concatenate(rows))


def scan(path, voxel_m):
    xyz = np.load(path)[:, :3].astype(np.float64)
    voxels = np.unique(np.floor((xyz - xyz.min(0)) / voxel_m).astype(np.int32), axis=0)
    return torch.from_numpy(np.pad(voxels, ((0, 0), (1, 0))))


def pairs_of(set):
    """Pairs of a 3 x 3 x 3 convolution within a set: each voxel has the sum of ones around it."""
    conv = F.sparseconv_plan(F.kernel_map(set, kind="submanifold", size=3), max_in_channels=1, max_out_channels=1)
    return int(F.sparseconv(torch.ones(set.max_rows, 1), torch.ones(27, 1, 1), conv).double().sum())


def count(group, rank, rows, a, parts, found):
    """The rows of a rank at each level."""
    with comm.Comm.of_threads(group, rank) as c:
        began = time.perf_counter()
        partition = ranks.Partition.of_all_rows(c, rows, num_chunks=a.chunks * parts, cell_log2=a.cell_log2)
        mine = rows[len(rows) * rank // parts : len(rows) * (rank + 1) // parts]
        owned = partition.to_owners(mine)[0]
        cut = time.perf_counter() - began
        for level in range(a.levels):
            stride = 2**level
            began = time.perf_counter()
            if level:
                lower, upper = partition.box(stride)
                finer = F.coords(halo.rows[: halo.num_owned].contiguous(), lower=halo_box[0], upper=halo_box[1])
                owned = F.coords_rows(F.coords_down(finer, size=2, stride=2, order=partition.order, lower=lower, upper=upper))[0]
            halo, halo_box = ranks.Halo(partition, owned, stride=stride), partition.box(stride)
            ghosts = halo.rows[halo.num_owned :]
            line = dict(owned=halo.num_owned, ghosts=halo.num_ghosts, from_ranks=len(torch.unique(partition.owners(ghosts, stride))) if len(ghosts) else 0)
            line["halo_s"] = time.perf_counter() - began
            line["partition_s"] = cut
            if parts == 1:
                line["pairs"] = pairs_of(F.coords(halo.rows, lower=halo_box[0], upper=halo_box[1]))
            found[rank].append(line)


def run(rows, a, parts):
    group, found, failed = comm.Group(parts), [[] for _ in range(parts)], []

    def body(rank):
        try:
            count(group, rank, rows, a, parts, found)
        except Exception as error:
            failed.append(f"rank {rank}: {error}")

    threads = [threading.Thread(target=body, args=(r,)) for r in range(parts)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise SystemExit(failed[0])
    for level in range(a.levels):
        of = [f[level] for f in found]
        total = sum(x["owned"] for x in of)
        yield dict(level=level, rows=total, parts=parts, owned_most=max(x["owned"] for x in of), ghosts_most=max(x["ghosts"] for x in of),
                   ghosts_all=sum(x["ghosts"] for x in of), from_ranks_most=max(x["from_ranks"] for x in of), pairs=of[0].get("pairs"),
                   partition_s=round(max(x["partition_s"] for x in of), 4), halo_s=round(max(x["halo_s"] for x in of), 4))  # fmt: skip


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gyroid", type=float, action="append", default=[], help="voxels of a made cloud, may be given again")
    p.add_argument("--scan", action="append", default=[], help="FILE.npy:VOXEL_M, f32 [points, columns], x y z first; may be given again")
    p.add_argument("--parts", default="1,2,4,8,16,32,64")
    p.add_argument("--levels", type=int, default=5)
    p.add_argument("--chunks", type=int, default=8, help="of each part (8)")
    p.add_argument("--cell-log2", type=int, default=4, help="voxels along a side of a cell, as a power of two (4)")
    p.add_argument("--commit", default="unknown")
    p.add_argument("--output", help="JSON lines are added to this file")
    a = p.parse_args()
    clouds = [(f"gyroid {n:.3g}", gyroid(n)) for n in a.gyroid or ([1e5] if not a.scan else [])]
    for text in a.scan:
        path, _, voxel = text.rpartition(":")
        clouds.append((f"{Path(path).stem} at {voxel} m", scan(path, float(voxel))))
    torch.set_num_threads(1)
    print("| cloud | voxels | parts | rows of a part, most over mean | ghosts of a part: most, mean; of its rows | times the root of its rows | from parts | all levels, ghosts of a part |")
    print("|---|---|---|---|---|---|---|---|")
    for name, rows in clouds:
        for parts in map(int, a.parts.split(",")):
            lines = list(run(rows, a, parts))
            fine, mean = lines[0], len(rows) / parts
            print(f"| {name} | {len(rows):,} | {parts} | {fine['owned_most'] / mean:.3f} | {fine['ghosts_most']:,}, {fine['ghosts_all'] / parts:,.0f}; {fine['ghosts_all'] / len(rows):.2%} "
                  f"| {fine['ghosts_all'] / parts / mean**0.5:.2f} | {fine['from_ranks_most']} | {' '.join(f'''{x['ghosts_all'] / parts:,.0f}''' for x in lines)} |", flush=True)  # fmt: skip
            if a.output:
                with open(a.output, "a", encoding="utf-8") as out:
                    noted = dict(date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), commit=a.commit, suite="halos", cloud=name, voxels=len(rows),
                                 chunks=a.chunks * parts, cell_log2=a.cell_log2)  # fmt: skip
                    out.writelines(json.dumps({**noted, **{k: v for k, v in x.items() if v is not None}}) + "\n" for x in lines)


if __name__ == "__main__":
    main()
