# SPDX-License-Identifier: Apache-2.0
"""Labels for LAS, LAZ and COPC files, tile by tile: python -m spops.tiles --help."""
from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import Failed, Job, run

if TYPE_CHECKING:
    import torch

    from . import Segment


def load_network(name: str, checkpoint: str | None) -> torch.nn.Module:
    """What FILE.py:NAME or MODULE:NAME makes, with the state of a checkpoint."""
    import torch  # here and below: processes that read files import this module

    module, _, attribute = name.rpartition(":")
    if not module:
        raise SystemExit(f"--network is {name!r}, expected FILE.py:NAME or MODULE:NAME")
    if module.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(module).stem, module)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(module)
    net = getattr(found, attribute)()
    if checkpoint:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        net.load_state_dict(state.get("state_dict", state))
    return net.eval()


def halo_of(net: torch.nn.Module, columns: int) -> int:
    """Voxels along x and y that the network reads around one; it is run on a few made ones."""
    import torch

    from .. import SparseTensor, receptive_field_of

    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    with torch.device("cpu"):
        rows = torch.unique(torch.randint(0, 32, (2000, 4), generator=torch.Generator().manual_seed(1)) % torch.tensor([1, 32, 32, 32]), dim=0)
    x = SparseTensor(torch.zeros(len(rows), columns, device=device), rows.to(device))
    reach = receptive_field_of(net, x)[0]
    most = max(*reach.lower[:2], *reach.upper[:2])
    if not math.isfinite(most):
        raise SystemExit("the network reads every voxel along x or y, so that no halo is enough: see docs/tiles.md, or give --halo")
    return int(most)


def make_segment(network: str, checkpoint: str | None, device: str, dtype: str, logits: bool) -> Segment:
    import torch

    from . import Segment

    return Segment(load_network(network, checkpoint), device, getattr(torch, dtype), logits=logits)


def parse(arguments) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m spops.tiles", description=__doc__)
    p.add_argument("files", nargs="+", help="LAS, LAZ and COPC files, or folders of them")
    p.add_argument("--out", required=True, help="folder of the result, and of what a job keeps to go on")
    p.add_argument("--network", required=True, help="FILE.py:NAME or MODULE:NAME, called without arguments: a network of spops.nn")
    p.add_argument("--checkpoint", help="state_dict, or a dict that has one")
    p.add_argument("--voxel", type=float, required=True, help="m")
    p.add_argument("--tile", type=float, required=True, help="m, a side of a tile")
    p.add_argument("--halo", type=float, help="m; without it the receptive field of the network")
    p.add_argument("--columns", type=int, default=4, help="features of a point that the network takes (4)")
    p.add_argument("--origin", type=float, nargs=3, default=(0.0, 0.0, 0.0), help="m, lower corner of voxel 0 (0 0 0)")
    p.add_argument("--field", default="classification", help="dimension that gets the labels")
    p.add_argument("--logits", action="store_true", help="keep logits in parts/")
    p.add_argument("--engine", choices=("local", "ray"), default="local")
    p.add_argument("--device", default="cpu")
    p.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    p.add_argument("--retries", type=int, default=2, help="of a tile (2)")
    p.add_argument("--workers", type=int, default=1, help="processes that cut and write; Ray: actors that label (1)")
    p.add_argument("--cpus", type=float, default=1.0, help="Ray: cores of an actor without a GPU (1)")
    p.add_argument("--gpus", type=float, default=0.0, help="Ray: GPUs of an actor (0)")
    p.add_argument("--readers", type=int, default=1, help="tiles that are loaded at a time, in processes where there are several (1)")
    p.add_argument("--memory", type=float, help="Ray: GiB for tiles on the way")
    p.add_argument("--address", help="Ray: of a cluster; without it one is started here")
    p.add_argument("--quiet", action="store_true", help="no lines of progress")
    return p.parse_args(arguments)


def files_of(names: list[str]) -> list[str]:
    found = []
    for name in names:
        path = Path(name)
        found += sorted(str(p) for p in path.iterdir() if p.suffix.lower() in (".las", ".laz")) if path.is_dir() else [name]
    return found


def main(arguments=None) -> int:
    a = parse(arguments)
    if a.halo is None:
        halo = halo_of(load_network(a.network, a.checkpoint), a.columns)
    else:
        halo = math.ceil(a.halo / a.voxel - 1e-9)
    job = Job.create(files_of(a.files), a.out, a.voxel, a.tile, halo, a.origin, a.field, a.logits)
    grid = job.grid
    if not a.quiet:
        print(f"{len(job.files)} files, tiles of {grid.tile} voxels, halo of {grid.halo} ({grid.halo * grid.voxel_m:g} m)", file=sys.stderr)
    if a.engine == "ray":
        import ray

        ray.init(address=a.address, log_to_driver=False, include_dashboard=False)
    make = partial(make_segment, a.network, a.checkpoint, a.device, a.dtype, a.logits)
    memory = None if a.memory is None else int(a.memory * 2**30)
    try:
        run(job, make, a.engine, a.retries, not a.quiet, a.workers, a.cpus, a.gpus, a.readers, memory)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
