# SPDX-License-Identifier: Apache-2.0
"""Training of a MinkUNet, or of the network of examples/segment, over ranks in PyTorch, and what it then says of points:
outputs, gradients and weights have the bits of one rank.

    python ranks.py --threads 3                  ranks are threads, on the CPU
    python ranks.py --threads 3 --network segment
    torchrun --nproc-per-node 8 ranks.py         a process a GPU, NCCL

Beside DistributedDataParallel: that wraps a network whose ranks see different scans, and averages their gradients. The
average is cut by rank, so its bits depend on how many ranks there are. Here ranks see parts of one scan. A layer refreshes
the rows that it reads and another rank owns, and gradients of weights are summed by chunks of space, which are cut at the
same places for any number of ranks. So there is no wrapper: when backward returns, gradients are those of all ranks.
"""
import argparse
import os
import threading
import time

import torch

import spops
from spops import comm as sc
from spops import ranks as sr

CHANNELS = 32, 32, 64, 128, 256, 256, 128, 96, 96
WIDTHS = 32, 32, 48, 64, 96
INPUTS, OUTPUTS = 4, 16


class Residual(torch.nn.Module):
    """Two convolutions beside the identity, or beside a linear layer."""

    def __init__(self, a, b):
        super().__init__()
        self.one, self.norm = sr.SubmanifoldConv(a, b), sr.BatchNorm(b, relu=True)
        self.two, self.last = sr.SubmanifoldConv(b, b), sr.BatchNorm(b)
        self.beside = sr.Linear(a, b, bias=False) if a != b else None

    def forward(self, x, level):
        y = self.norm(self.one(x, level), level)
        y = self.last(self.two(y, level), level)
        return torch.relu(y + (x if self.beside is None else self.beside(x, level)))


class MinkUNet(torch.nn.Module):
    """Owned rows of the finest level -> rows of OUTPUTS; levels: 2 to 5."""

    def __init__(self, width=0.25, levels=3):
        super().__init__()
        cs = [int(c * width) for c in CHANNELS]
        self.stem, self.stem_norm = sr.SubmanifoldConv(INPUTS, cs[0]), sr.BatchNorm(cs[0], relu=True)
        self.down, self.down_norms, self.blocks = torch.nn.ModuleList(), torch.nn.ModuleList(), torch.nn.ModuleList()
        for n in range(levels - 1):
            self.down.append(sr.DownConv(cs[n], cs[n]))
            self.down_norms.append(sr.BatchNorm(cs[n], relu=True))
            self.blocks.append(Residual(cs[n], cs[n + 1]))
        self.up, self.up_norms, self.mix = torch.nn.ModuleList(), torch.nn.ModuleList(), torch.nn.ModuleList()
        c = cs[levels - 1]
        for n in reversed(range(levels - 1)):
            to = cs[8 - n]
            self.up.append(sr.UpConv(c, to))
            self.up_norms.append(sr.BatchNorm(to, relu=True))
            self.mix.append(Residual(to + cs[n], to))
            c = to
        self.head = sr.Linear(c, OUTPUTS)

    def forward(self, x, levels):
        skips = [self.stem_norm(self.stem(x, levels[0]), levels[0])]
        for n, (down, norm, block) in enumerate(zip(self.down, self.down_norms, self.blocks), 1):
            skips.append(block(norm(down(skips[-1], levels[n]), levels[n]), levels[n]))
        x = skips.pop()
        for n, up, norm, mix in zip(reversed(range(len(skips))), self.up, self.up_norms, self.mix):
            x = norm(up(x, levels[n + 1]), levels[n])
            x = mix(torch.cat([x, skips.pop()], 1), levels[n])
        return self.head(x, levels[0])


class Segment(torch.nn.Module):
    """The U-Net of examples/segment and of train_segment.py, whose skips are sums; its logits are those of voxels."""

    def __init__(self, width=0.25, levels=3):
        super().__init__()
        ws = [int(w * width) for w in WIDTHS[:levels]]
        pairs, layers = list(zip(ws, ws[1:])), torch.nn.ModuleList
        self.stem, self.stem_norm = sr.SubmanifoldConv(INPUTS, ws[0]), sr.BatchNorm(ws[0], relu=True)
        self.encode, self.encode_norms = layers(sr.SubmanifoldConv(w, w) for w in ws), layers(sr.BatchNorm(w, relu=True) for w in ws)
        self.down, self.down_norms = layers(sr.DownConv(a, b) for a, b in pairs), layers(sr.BatchNorm(b, relu=True) for _, b in pairs)
        self.up = layers(sr.UpConv(b, a) for a, b in pairs)
        self.decode, self.decode_norms = layers(sr.SubmanifoldConv(a, a) for a, _ in pairs), layers(sr.BatchNorm(a, relu=True) for a, _ in pairs)
        self.head = sr.SubmanifoldConv(ws[0], OUTPUTS)

    def forward(self, x, levels):
        x, skips = self.stem_norm(self.stem(x, levels[0]), levels[0]), []
        for level, conv, norm in zip(levels, self.encode, self.encode_norms):
            if skips:
                n = len(skips) - 1
                x = self.down_norms[n](self.down[n](x, level), level)
            x = norm(conv(x, level), level)
            skips.append(x)
        for n in reversed(range(len(levels) - 1)):
            x = self.up[n](x, levels[n + 1]) + skips[n]
            x = self.decode_norms[n](self.decode[n](x, levels[n]), levels[n])
        return self.head(x, levels[0])


NETWORKS = {"minkunet": MinkUNet, "segment": Segment}


def said_of_points(network, x, levels):
    """Outputs in eval mode, interpolated at two points of each owned voxel: the eight voxels around a point are owned, or ghosts."""
    halo = levels[0].halo
    network.eval()
    with torch.no_grad():
        y = spops.SparseTensor(halo.refresh(network(x, levels)), halo.rows)
        lower = levels[0].rows[:, 1:].float()
        at = [lower + torch.tensor(places, device=lower.device) for places in ((0.25, 0.75, 0.375), (0.875, 0.125, 0.625))]
        return torch.cat([spops.devoxelize(y, p, size=1.0, origin=0.0, interpolation="linear", missing="rescale") for p in at], 1)


def made_cloud(voxels):
    """Ground with steps, and walls on it: rows, features and targets, the same on all ranks."""
    depth = 40 if voxels < 100000 else 1024
    x, y, z = torch.meshgrid(torch.arange(max(voxels // depth, 1)), torch.arange(depth), torch.arange(12), indexing="ij")
    there = (z < 1) | (x % 53 == 7) | (y % 47 == 11)
    z = z + (x // 9 + y // 6) % 11 - 5
    rows = torch.stack([torch.zeros_like(x), x - 100, y - 17, z], -1)[there][:voxels].int()
    g = torch.Generator("cpu").manual_seed(1)
    return rows, *(torch.randn(len(rows), n, generator=g, device="cpu") for n in (INPUTS, OUTPUTS))


def train(comm, start, options):
    """Steps on this rank's part: its rows' numbers in the cloud, their outputs, and gradients and state of all."""
    rows, feats, target = made_cloud(options.voxels)
    mine = slice(len(rows) * comm.rank // comm.num_ranks, len(rows) * (comm.rank + 1) // comm.num_ranks)
    numbers = torch.arange(len(rows)).view(-1, 1)
    given = [t[mine].to(comm.device) for t in (rows, feats, target, numbers)]  # what a rank has read of a file
    partition = sr.Partition(comm, given[0])
    owned, x, wanted, at = partition.to_owners(*given)
    levels = sr.make_levels(partition, owned, options.levels, max_cols=max(2 * int(c * options.width) for c in CHANNELS))
    x, wanted, at = (t[levels[0].items] for t in (x, wanted, at))  # by chunk
    network = NETWORKS[options.network](options.width, options.levels).to(comm.device)
    network.load_state_dict(start)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    times = []
    for _ in range(options.steps):
        comm.wait()
        begin = time.perf_counter()
        optimizer.zero_grad()
        y = network(x, levels)
        loss = levels[0].sum((y - wanted).square()).sum() / levels[0].num_all_rows
        loss.backward()
        optimizer.step()
        comm.wait()
        times.append(time.perf_counter() - begin)
    halo = levels[0].halo
    print(f"rank {comm.rank} of {comm.num_ranks}: {halo.num_owned} rows, {halo.num_ghosts} ghosts, loss {loss.item():.6f}, {1e3 * min(times):.1f} ms a step", flush=True)
    gradients = [p.grad.cpu() for p in network.parameters()]
    y = torch.cat([y.detach(), said_of_points(network, x, levels)], 1)
    return at[:, 0].cpu(), y.cpu(), gradients, {k: v.cpu() for k, v in network.state_dict().items()}


def differences(found, one):
    """How many outputs, gradients and values of the state have other bits than those of one rank."""
    at, y, gradients, state = found
    expected = torch.empty_like(one[1]).index_copy_(0, one[0], one[1])[at]
    pairs = [(y, expected), *zip(gradients, one[2]), *((v, one[3][k]) for k, v in state.items())]
    return sum(int((a != b).sum()) for a, b in pairs)


def in_threads(num_ranks, start, options):
    group, results, errors = sc.Group(num_ranks), [None] * num_ranks, []

    def rank(r):
        try:
            with sc.Comm.of_threads(group, r) as comm:
                results[r] = train(comm, start, options)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(num_ranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def in_processes(start, options):
    """Under torchrun: what this rank has, and what it has alone."""
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    try:
        with sc.Comm.of_process_group(device=device) as comm:
            found = train(comm, start, options)
        with sc.Comm.of_nccl_id(sc.new_nccl_id(device), 1, 0, device) as alone:
            return found, train(alone, start, options)
    finally:
        dist.destroy_process_group()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="ranks that are threads on the CPU; without it, ranks are torchrun's")
    parser.add_argument("--network", choices=tuple(NETWORKS), default="minkunet")
    parser.add_argument("--voxels", type=int, default=4000)
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.threads is None and "LOCAL_RANK" not in os.environ:
        parser.error("say --threads N, or start it by torchrun")
    if min(options.voxels, options.steps, 1 if options.threads is None else options.threads) < 1 or not 2 <= options.levels <= 5:
        parser.error("expected 1 or more threads, voxels and steps, and 2 to 5 levels")
    if not 1 / 32 <= options.width <= 64:
        parser.error(f"--width is {options.width}, expected 1/32 to 64")
    torch.manual_seed(3)
    start = NETWORKS[options.network](options.width, options.levels).state_dict()
    if options.threads is None:
        found, one = in_processes(start, options)
        differ = differences(found, one)
    else:
        one = in_threads(1, start, options)[0]
        differ = sum(differences(found, one) for found in in_threads(options.threads, start, options))
    print("outputs, gradients, weights and statistics have the bits of one rank" if differ == 0 else f"{differ} values have other bits than one rank gives")
    return int(differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
