# SPDX-License-Identifier: Apache-2.0
"""A network over ranks: outputs, gradients and updated parameters have the bits of one rank."""
import copy
import functools
import importlib.util
from pathlib import Path

import pytest
import torch
from conftest import grid_rows
from test_comm import run_ranks, whole

from spops import _device
from spops import functional as F
from spops import ranks as sr
from spops.comm import CommBroken

NUM, STEPS = 1500, 2


@pytest.fixture(autouse=True)
def on_the_cpu(request, device):
    if device.type == "cuda" and "nccl" not in request.node.name:
        pytest.skip("several ranks have run on the CPU alone (docs/python.md)")


@functools.cache
def cloud():
    g = torch.Generator("cpu").manual_seed(5)
    rows = grid_rows(NUM, (48, 40, 12), 1).cpu()
    rows[:, 1:] -= 9
    return rows, *(torch.randn(NUM, n, generator=g, device="cpu") for n in (4, 3))


class Network(torch.nn.Module):
    """Three levels: what a MinkUNet has, once."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = sr.SubmanifoldConv(4, 8), sr.BatchNorm(8, relu=True)
        self.down = torch.nn.ModuleList([sr.DownConv(8, 16), sr.DownConv(16, 16)])
        self.within = torch.nn.ModuleList([sr.SubmanifoldConv(16, 16, bias=True), sr.SubmanifoldConv(16, 16)])
        self.norms = torch.nn.ModuleList([sr.BatchNorm(16, relu=True), sr.BatchNorm(16, activation="silu")])
        self.up = torch.nn.ModuleList([sr.UpConv(16, 8), sr.UpConv(16, 16)])
        self.last = sr.Linear(16, 3)

    def forward(self, x, levels):
        left = [self.norm(self.first(x, levels[0]), levels[0])]
        for n in (0, 1):
            level = levels[n + 1]
            left.append(self.norms[n](self.within[n](self.down[n](left[-1], level), level), level))
        x = self.up[1](left[2], levels[2]) + left[1]
        x = torch.cat([self.up[0](x, levels[1]), left[0]], 1)
        return self.last(x, levels[0])


def train(comm, take, **options):
    """Two steps; outputs by row of the cloud, gradients, parameters and running statistics."""
    rows, feats, target = cloud()
    at = torch.arange(NUM).view(-1, 1)
    if take == "slices":  # each rank has some rows, and sends them to their owners
        mine = slice(NUM * comm.rank // comm.num_ranks, NUM * (comm.rank + 1) // comm.num_ranks)
        partition = sr.Partition(comm, rows[mine], **options)
        owned, at = partition.to_owners(rows[mine], at[mine])
    else:
        partition = sr.Partition.of_all_rows(comm, rows, **options)
        at = at[partition.owners(rows) == comm.rank]
        owned = rows[at[:, 0]]
    levels = sr.make_levels(partition, owned, 3)
    at = at[levels[0].items, 0]
    assert torch.equal(rows[at], levels[0].rows) and levels[0].num_all_rows == NUM
    network = Network()
    network.load_state_dict(initial())
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = feats[at].clone().requires_grad_()
        y = network(x, levels)
        loss = levels[0].sum((y - target[at]).square()).sum() / NUM
        loss.backward()
        gradients = [p.grad.clone() for p in network.parameters()]
        optimizer.step()
    network.eval()
    with torch.no_grad():
        z = network(feats[at], levels)
    state = {k: v.clone() for k, v in network.state_dict().items()}
    return at, (y.detach(), x.grad, z), (loss.detach(), *gradients), state, levels[0].halo.num_ghosts


@functools.cache
def initial():
    torch.manual_seed(11)
    return {k: v.clone() for k, v in Network().state_dict().items()}


@functools.cache
def of_one_rank():
    return whole(*run_ranks(1, "cpu", lambda comm: train(comm, "all")))[0]


def compare(results):
    at, by_row, shared, state, _ = of_one_rank()
    expected = [torch.empty_like(m).index_copy_(0, at, m) for m in by_row]
    assert torch.equal(torch.cat([r[0] for r in results]).sort().values, torch.arange(NUM))
    for where, rows, values, found, _ in results:
        assert all(torch.equal(m, e[where]) for m, e in zip(rows, expected))
        assert all(torch.equal(a, b) for a, b in zip(values, shared))
        assert all(torch.equal(found[k], v) for k, v in state.items())


@pytest.mark.parametrize("n,take,first", [
    (1, "slices", None), (2, "all", None), (2, "slices", [0, 3, 16]), (3, "slices", None), (3, "all", [0, 7, 7, 16]),
])  # fmt: skip
def test_bits_of_one_rank(n, take, first):
    results = whole(*run_ranks(n, "cpu", lambda comm: train(comm, take, first_chunk=first)))
    compare(results)
    assert (n > 1) == any(r[4] > 0 for r in results)
    if first == [0, 7, 7, 16]:
        assert len(results[1][0]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dims", [2, 3])
def test_dtypes_dims_and_options(dims, dtype):
    rows, feats, _ = cloud()
    rows = rows if dims == 3 else torch.unique(rows[:, :3], dim=0)
    torch.manual_seed(1)
    first = sr.SubmanifoldConv(4, 8, dims=dims, bias=True), sr.BatchNorm(8, relu=True), sr.DownConv(8, 8, dims=dims), sr.UpConv(8, 8, dims=dims), sr.Linear(8, 2)

    def body(comm):
        options = dict(weights=torch.arange(len(rows)), cell_log2=3, order="morton", num_chunks=7)
        partition = sr.Partition.of_all_rows(comm, rows, **options)
        at = (partition.owners(rows) == comm.rank).nonzero()[:, 0]
        levels = sr.make_levels(partition, rows[at], 2)
        at = at[levels[0].items]
        conv, norm, down, up, last = layers = copy.deepcopy(first)
        x = feats[at].to(dtype).requires_grad_()
        y = norm(conv(x, levels[0]), levels[0])
        y = last(y + up(down(y, levels[1]), levels[1]), levels[0])
        loss = levels[0].sum(y.square()).sum() / levels[0].num_all_rows
        loss.backward()
        return at, y.detach(), x.grad, [loss.detach(), *(p.grad for m in layers for p in m.parameters())]

    at, *by_row, shared = whole(*run_ranks(1, "cpu", body))[0]
    expected = [torch.full_like(m, torch.nan).index_copy_(0, at, m) for m in by_row]
    assert all(m.dtype is dtype for m in by_row) and all(bool(v.isfinite().all() & (v != 0).any()) for v in shared)
    for n in (2, 5):
        results = whole(*run_ranks(n, "cpu", body))
        assert sum(len(r[0]) for r in results) == len(rows)
        for where, *found, values in results:
            assert all(torch.equal(m, e[where]) for m, e in zip(found, expected))
            assert all(torch.equal(a, b) for a, b in zip(values, shared))


def test_one_rank_is_a_network_of_spops():
    """The same network on spops' plain operators, whose sums have another order."""
    at, (y, gx, _), (loss, *gradients), _, _ = of_one_rank()
    rows, feats, target = cloud()

    def body(comm):
        partition = sr.Partition.of_all_rows(comm, rows)
        lower, upper = partition.box()
        sets = [F.coords(rows, lower=lower, upper=upper)]
        for n in (1, 2):
            lower, upper = partition.box(2**n)
            sets.append(F.coords_down(sets[-1], size=2, stride=2, lower=lower, upper=upper))
        return sets

    sets = whole(*run_ranks(1, "cpu", body))[0]
    within = [F.sparseconv_plan(F.kernel_map(s, size=3), backward=True) for s in sets]
    maps = [F.kernel_map(a, b, kind="convolution", size=2, stride=2) for a, b in zip(sets, sets[1:])]
    down = [F.sparseconv_plan(m, backward=True) for m in maps]
    up = [F.sparseconv_plan(F.kernel_map_inverse(m), backward=True) for m in maps]
    p = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in initial().items()}

    def norm(x, name, activation):
        mean, var = F.batchnorm_statistics(x.detach())[:2]
        return F.batchnorm(x, mean, var, p[name + ".weight"], p[name + ".bias"], activation=activation)

    optimizer = torch.optim.SGD([p[k] for k, _ in Network().named_parameters()], 0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = feats.clone().requires_grad_()
        left = [norm(F.sparseconv(x, p["first.weight"], within[0]), "norm", "relu")]
        for n in (0, 1):
            z = F.sparseconv(left[-1], p[f"down.{n}.weight"], down[n])
            left.append(norm(F.sparseconv(z, p[f"within.{n}.weight"], within[n + 1], p.get(f"within.{n}.bias")), f"norms.{n}", ("relu", "silu")[n]))
        z = F.sparseconv(left[2], p["up.1.weight"], up[1]) + left[1]
        z = torch.cat([F.sparseconv(z, p["up.0.weight"], up[0]), left[0]], 1)
        out = z @ p["last.weight"] + p["last.bias"]
        total = (out - target).square().sum() / NUM
        total.backward()
        found = [p[k].grad.clone() for k, _ in Network().named_parameters()]
        optimizer.step()
    near = functools.partial(torch.testing.assert_close, rtol=2e-3, atol=2e-5)
    near(loss, total.detach())
    near(y, out.detach()[at])
    near(gx, x.grad[at])
    for a, b in zip(gradients, found):
        near(a, b)


def between(kind, places):
    """An operator without parameters over 5 x 5 x 5 neighbours."""
    map = F.kernel_map(F.coords(places), size=5)
    if kind == "sum":
        plan = F.pool_plan(map, gradients="linear")
        return lambda x: F.pool(x, plan, reduce="sum")
    plan = F.sparseconv_plan(map, backward=True, crop_independent=True)
    w = torch.linspace(-1, 1, 125 * 16).view(125, 4, 4)
    return lambda x: F.sparseconv(x, w, plan)


@pytest.mark.parametrize("kind", ["fixed weights", "sum"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_refresh_and_own(n, kind):
    rows, feats, target = cloud()

    def body(comm):
        partition = sr.Partition.of_all_rows(comm, rows)
        at = (partition.owners(rows) == comm.rank).nonzero()[:, 0]
        halo = sr.Halo(partition, rows[at], reach=2)
        at = at[halo.items]
        assert torch.equal(halo.rows[: halo.num_owned], rows[at])
        x = feats[at].clone().requires_grad_()
        every = halo.refresh(x)
        places = {tuple(r): i for i, r in enumerate(rows.tolist())}
        assert torch.equal(every.detach(), feats[[places[tuple(r)] for r in halo.rows.tolist()]])
        y = halo.own(between(kind, halo.rows)(every))
        (y * target[at, :1]).sum().backward()
        return at, y.detach(), x.grad

    ys, gradients = torch.full((NUM, 4), torch.nan), torch.full((NUM, 4), torch.nan)
    for at, y, g in whole(*run_ranks(n, "cpu", body)):
        ys[at], gradients[at] = y, g
    x = feats.clone().requires_grad_()
    y = between(kind, rows)(x)
    (y * target[:, :1]).sum().backward()
    assert torch.equal(ys, y.detach())
    if kind == "sum":  # its gradient adds outputs by row, and rows lie elsewhere on other ranks
        torch.testing.assert_close(gradients, x.grad)
    else:
        assert torch.equal(gradients, x.grad)


def test_refusals_are_those_of_all_ranks():
    rows, feats, _ = cloud()
    twice = torch.cat([rows[:40], rows[:1]])

    def body(comm):
        second = comm.rank == 1
        with pytest.raises(RuntimeError, match="rank 1: ValueError: coords_create"):
            sr.Partition(comm, twice if second else rows[40:60])
        with pytest.raises(RuntimeError, match="rank 1: ValueError: Partition: order is 'given'"):
            sr.Partition(comm, rows[:0], order="given" if second else "morton")
        with pytest.raises(RuntimeError, match=r"rank 1: ValueError: Partition: first_chunk has 2 numbers, expected 3"):
            sr.Partition(comm, rows[:0], first_chunk=[0, 16] if second else None)
        with pytest.raises(ValueError, match="partition_create: rank 1: options->first_chunk"):
            sr.Partition(comm, rows[:0], first_chunk=[0, 4, 15] if second else [0, 4, 16])
        partition = sr.Partition.of_all_rows(comm, rows)
        mine = partition.owners(rows) == comm.rank
        with pytest.raises(RuntimeError, match="rank 1: ValueError: Partition: values are"):
            partition.to_owners(rows, feats[1:] if second else feats)
        with pytest.raises(RuntimeError, match="rank 1: ValueError: Partition: row 0 is outside the box"):
            partition.to_owners(rows + 1000 if second else rows)
        with pytest.raises(ValueError, match="halo_create.*owned"):
            sr.Halo(partition, rows if second else rows[mine])
        with pytest.raises(RuntimeError, match="rank 1: ValueError: Halo: reach has 2 numbers"):
            sr.Halo(partition, rows[mine], reach=(1, 1) if second else 1)
        level = sr.make_levels(partition, rows[mine])[0]
        x = feats[mine]
        with pytest.raises(ValueError, match="halo_execute: rank 1 has rows of 12 bytes, rank 0 of 16"):
            level.halo.refresh(x[:, :3] if second else x)
        with pytest.raises(ValueError, match=r"halo_execute: .*x is \[.*\], expected"):
            level.halo.refresh(x[1:] if second else x)
        with pytest.raises(ValueError, match="halo_execute: .*x has 300 columns, the halo was made for 256"):
            sr.SubmanifoldConv(300 if second else 4, 8)(torch.zeros(len(x), 300 if second else 4), level)
        with pytest.raises(ValueError, match=r"chunk_sums_execute: .*partials is \[.*\], expected"):
            partition.chunk_sums(torch.zeros(len(level.halo.chunks()) + second, 5))
        with pytest.raises(ValueError, match="size 5 and dilation 1 reads 2 voxels"):
            sr.SubmanifoldConv(4, 4, 5)(x, level)
        assert len(level.halo.refresh(x)) == level.halo.num_rows
        comm.barrier()
        return partition, level.halo

    partition, halo = whole(*run_ranks(2, "cpu", body))[0]  # whose communicator is closed
    assert partition.box()[0] < partition.box()[1]
    with pytest.raises(ValueError, match="the communicator of sums was destroyed"):
        partition.chunk_sums(torch.zeros(partition.first_chunk[1], 5))
    with pytest.raises(ValueError, match="the communicator of halo was destroyed"):
        halo.refresh(torch.zeros(halo.num_owned, 4))
    with pytest.raises(ValueError, match="closed"):
        sr.Halo(partition, rows[:0])


def test_numbers_that_differ_between_ranks():
    rows, feats, _ = cloud()

    def body(comm):
        mine = slice(comm.rank, None, 3)
        partition = sr.Partition(comm, rows[mine])
        with pytest.raises(ValueError, match="Partition: number of values is 2 on rank 2, 1 on rank 0"):
            partition.to_owners(rows[mine], *[feats[mine]] * (2 if comm.rank == 2 else 1))
        (owned,) = partition.to_owners(rows[mine])
        with pytest.raises(ValueError, match="make_levels: num_levels is 2 on rank 1, 3 on rank 0"):
            sr.make_levels(partition, owned, 2 if comm.rank == 1 else 3)
        assert len(sr.make_levels(partition, owned, 2)) == 2

    whole(*run_ranks(3, "cpu", body))


def test_a_rank_that_stops():
    rows, feats, _ = cloud()

    def body(comm):
        partition = sr.Partition.of_all_rows(comm, rows)
        mine = partition.owners(rows) == comm.rank
        level = sr.make_levels(partition, rows[mine])[0]
        if comm.rank == 1:
            raise KeyError("stopped")
        with pytest.raises(CommBroken, match="rank 1"):
            sr.BatchNorm(4)(feats[mine], level)

    _, errors = run_ranks(2, "cpu", body)
    assert errors[0] is None and isinstance(errors[1], KeyError)


@pytest.mark.parametrize("network", ["minkunet", "segment"])
def test_example(capsys, network):
    path = Path(__file__).resolve().parents[2] / "examples" / "python" / "ranks.py"
    if not path.is_file():
        pytest.skip("examples/python/ranks.py: this is no checkout")
    spec = importlib.util.spec_from_file_location("ranks_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--threads", "2", "--voxels", "1200", "--network", network]) == 0
    said = capsys.readouterr().out
    assert "rank 1 of 2: " in said and said.endswith("have the bits of one rank\n")
    with pytest.raises(SystemExit):
        module.main(["--threads", "0"])
    one = torch.arange(3), torch.ones(3, 2), [torch.ones(4)], {"a": torch.ones(2)}
    assert module.differences(one, one) == 0
    assert module.differences((one[0][:2], one[1][:2], [torch.zeros(4)], {"a": torch.zeros(2)}), one) == 6


def test_nccl_of_one_rank(device, tmp_path):
    """The same calls beside torch.distributed."""
    import torch.distributed as dist

    from spops import comm as sc

    if not (_device.has_cuda and torch.cuda.is_available() and dist.is_nccl_available()):
        pytest.skip("NCCL: no GPU, or torch without NCCL")
    dist.init_process_group("nccl", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with sc.Comm.of_process_group(device=torch.device("cuda", 0)) as comm:
            rows, feats, _ = (t.cuda() for t in cloud())
            try:
                partition = sr.Partition.of_all_rows(comm, rows)
                level = sr.make_levels(partition, rows)[0]
                y = sr.BatchNorm(4).cuda()(feats[level.items], level)
            except NotImplementedError as error:
                pytest.skip(f"NCCL: {error}")
            at = level.items.cpu()
            torch.testing.assert_close(y.cpu(), torch.nn.BatchNorm1d(4, device="cpu")(feats.cpu())[at])
    finally:
        dist.destroy_process_group()
