# SPDX-License-Identifier: Apache-2.0
"""Labels for clouds that are larger than a machine, tile by tile, with the bits of the whole cloud.

    python -m spops.tiles IN.laz ... --out DIR --network FILE.py:NAME --voxel 0.1 --tile 50 [--engine ray]

A job has three passes, each over parts that are done once and kept: *cut* sorts the points of each file by
tile, *label* runs the network on each tile with its halo and keeps the core, *write* puts labels into copies
of the files. ``Job`` has them as plain functions, so that any engine can call them:

    job = Job.create(files, out, voxel_m=0.1, tile_m=50, halo_voxels=40)
    for i in range(len(job.files)): job.cut(i)
    label = Segment(net, device="cuda")
    for key in job.tiles(): job.label(key, label)
    for i in range(len(job.files)): job.write(i)

Needs laspy and lazrs (pip install 'spops[tiles]', which also has Ray). docs/tiles.md has the whole story.
"""
from ._grid import Grid, Tile
from ._job import Job
from ._run import Failed, run

__all__ = ["Failed", "Grid", "Job", "Segment", "Tile", "run"]


def __getattr__(name: str):
    if name == "Segment":  # brings torch, which processes that only cut and write files do without
        from ._segment import Segment

        return Segment
    raise AttributeError(f"module 'spops.tiles' has no attribute {name!r}")
