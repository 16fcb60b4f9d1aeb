# SPDX-License-Identifier: Apache-2.0
"""Labels for LAS, LAZ and COPC files, tile by tile: python -m spops.tiles --help."""
from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import Failed, Job, run
from ._run import Refused, runtime_env

if TYPE_CHECKING:
    import torch

    from . import Segment


def load_network(name: str, checkpoint: str | None) -> torch.nn.Module:
    """What FILE.py:NAME or MODULE:NAME makes, with the state of a checkpoint."""
    import torch  # here and below: processes that read files import this module

    module, _, attribute = name.rpartition(":")
    if module.endswith(".py"):
        if not os.path.isfile(module):
            raise Refused(f"--network: there is no file {module}")
        spec = importlib.util.spec_from_file_location(Path(module).stem, module)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    elif not module or importlib.util.find_spec(module.partition(".")[0]) is None:
        raise Refused(f"--network is {name!r}, expected FILE.py:NAME or MODULE:NAME of a module that there is")
    else:
        found = importlib.import_module(module)
    if not hasattr(found, attribute):
        raise Refused(f"--network: {module} has no {attribute!r}")
    if checkpoint and not os.path.isfile(checkpoint):
        raise Refused(f"--checkpoint: there is no file {checkpoint}")
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
    try:
        reach = receptive_field_of(net, x)[0]
    except Exception as error:
        raise RuntimeError(f"the network fails on {len(rows)} made voxels of {columns} features (--columns); --halo does without them") from error
    most = max(*reach.lower[:2], *reach.upper[:2])
    if not math.isfinite(most):
        raise Refused("--halo: the network reads every voxel along x or y, so that no halo is enough")
    beyond_it(net, columns, int(most), rows)
    return int(most)


def beyond_it(net: torch.nn.Module, columns: int, halo: int, rows: torch.Tensor) -> None:
    """Refuse a network whose outputs follow from voxels further away: layers that receptive_field_of does not see."""
    import torch

    from .. import SparseTensor

    side = 32
    with torch.device("cpu"):
        others = [rows + torch.tensor([0, x * (side + halo), y * (side + halo), 0]) for x, y in ((-1, 0), (1, 0), (0, -1), (0, 1))]
        places = torch.unique(torch.cat([rows, *others]), dim=0)
        own = ((places[:, 1:3] >= 0) & (places[:, 1:3] < side)).all(1)
        draw = torch.Generator().manual_seed(2)
        feats, changed = (torch.randn(len(places), columns, generator=draw) for _ in range(2))
        changed[~own] *= 100
        changed[own] = feats[own]
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    found = []
    for f in (feats, changed):  # no NaN: on CUDA it meets zeros of taps that a row lacks
        with torch.no_grad():
            y = net(SparseTensor(f.to(device), places.to(device)))
        found.append((y.feats if isinstance(y, SparseTensor) else y)[own.to(device)])
    if not torch.allclose(*found, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise Refused(f"--halo: the network reads further than the {halo} voxels of its layers; it calls functions that are not seen (docs/tiles.md)")


def make_segment(network: str, checkpoint: str | None, device: str, dtype: str, logits: bool) -> Segment:
    import torch

    from . import Segment

    return Segment(load_network(network, checkpoint), device, getattr(torch, dtype), logits=logits)


def number(least: float, kind: type = float, above: bool = False) -> Callable[[str], float]:
    """A number of at least so much, or above it."""
    limit = f"more than {least}" if above else f"{least} or more"

    def of(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (value > least if above else value >= least) or value == math.inf:
            raise argparse.ArgumentTypeError(f"{text!r}, expected {'a whole' if kind is int else 'a finite'} number of {limit}")
        return value

    return of


def parse(arguments) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m spops.tiles", description=__doc__)
    p.add_argument("files", nargs="+", help="LAS, LAZ and COPC files, or folders of them")
    p.add_argument("--out", required=True, help="folder of the result, and of what a job keeps to go on")
    p.add_argument("--network", required=True, help="FILE.py:NAME or MODULE:NAME, called without arguments: a network of spops.nn")
    p.add_argument("--checkpoint", help="state_dict, or a dict that has one")
    p.add_argument("--voxel", type=number(0, above=True), required=True, help="m")
    p.add_argument("--tile", type=number(0, above=True), required=True, help="m, a side of a tile")
    p.add_argument("--halo", type=number(0), help="m; without it the receptive field of the network")
    p.add_argument("--columns", type=number(1, int), default=4, help="features of a point that the network takes (4)")
    p.add_argument("--origin", type=float, nargs=3, default=(0.0, 0.0, 0.0), help="m, lower corner of voxel 0 (0 0 0)")
    p.add_argument("--field", default="classification", help="dimension that gets the labels")
    p.add_argument("--logits", action="store_true", help="keep logits in parts/")
    p.add_argument("--engine", choices=("local", "ray"), default="local")
    p.add_argument("--device", default="cpu")
    p.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    p.add_argument("--retries", type=number(0, int), default=2, help="of a tile (2)")
    p.add_argument("--workers", type=number(1, int), default=1, help="processes that cut and write; Ray: actors that label (1)")
    p.add_argument("--cpus", type=number(0), default=1.0, help="Ray: cores of an actor without a GPU (1)")
    p.add_argument("--gpus", type=number(0), default=0.0, help="Ray: GPUs of an actor (0)")
    p.add_argument("--readers", type=number(1, int), default=1, help="tiles that are loaded at a time, in processes where there are several (1)")
    p.add_argument("--memory", type=number(0, above=True), help="Ray: GiB for tiles on the way")
    p.add_argument("--address", help="Ray: of a cluster; without it one is started here")
    p.add_argument("--quiet", action="store_true", help="no lines of progress")
    return p.parse_args(arguments)


def files_of(names: list[str]) -> list[str]:
    found = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = sorted(str(p) for p in path.iterdir() if p.suffix.lower() in (".las", ".laz") and not p.name.startswith("."))
            if not inside:
                raise Refused(f"{name}: a folder without LAS and LAZ files")
            found += inside
        else:
            found.append(name)
    return found


def labelled_by(a: argparse.Namespace) -> str:
    """Of what labels depend on, beside the files: another network does not go on with what one has left."""
    weights = hashlib.sha256(Path(a.checkpoint).read_bytes()).hexdigest() if a.checkpoint else "none"
    return f"{a.network}, checkpoint {weights}, {a.dtype}"


def job_of(a: argparse.Namespace) -> Job:
    """The job of a command. What can be refused is refused here, before anything is cut."""
    import torch

    if a.engine == "ray" and importlib.util.find_spec("ray") is None:
        raise Refused("--engine ray needs Ray: pip install 'spops[tiles]'")
    if a.network.rpartition(":")[0].endswith(".py"):
        a.network = os.path.abspath(a.network)  # for processes that are in other folders
    a.checkpoint = a.checkpoint and os.path.abspath(a.checkpoint)
    files = files_of(a.files)
    net = load_network(a.network, a.checkpoint)
    try:
        torch.empty(0, device=a.device if a.engine == "local" else "cpu")  # workers of Ray may have another device
    except (RuntimeError, AssertionError) as error:
        raise Refused(f"--device is {a.device}: {str(error).splitlines()[0]}") from error
    halo = halo_of(net, a.columns) if a.halo is None else math.ceil(min(a.halo / a.voxel, 2.0**62) - 1e-9)
    try:
        return Job.create(files, a.out, a.voxel, a.tile, halo, a.origin, a.field, a.logits, labelled_by(a))
    except (ValueError, OSError, ImportError) as error:
        raise Refused(str(error)) from error


def main(arguments=None) -> int:
    a = parse(arguments)
    try:
        job = job_of(a)
    except Refused as error:
        print(f"python -m spops.tiles: {error}", file=sys.stderr)
        return 2
    grid = job.grid
    if not a.quiet:
        print(f"{len(job.files)} files, tiles of {grid.tile} voxels, halo of {grid.halo} ({grid.halo * grid.voxel_m:g} m)", file=sys.stderr)
    if a.engine == "ray" and a.address:
        import ray

        ray.init(address=a.address, log_to_driver=False, include_dashboard=False, runtime_env=runtime_env())
    make = partial(make_segment, a.network, a.checkpoint, a.device, a.dtype, a.logits)
    memory = None if a.memory is None else max(int(a.memory * 2**30), 1)
    try:
        run(job, make, a.engine, a.retries, not a.quiet, a.workers, a.cpus, a.gpus, a.readers, memory)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    except Refused as error:
        print(f"python -m spops.tiles: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
