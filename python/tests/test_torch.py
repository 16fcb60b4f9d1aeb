# SPDX-License-Identifier: Apache-2.0
"""What torch does with plans and networks: pickles, pytrees, compilers, export, replicas, transforms."""
import copy
import datetime
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import DEVICES, grid_rows

import spops
import spops.functional as F
import spops.nn as snn


def conv_plan(n=120, seed=1):
    return F.sparseconv_plan(F.kernel_map(F.coords(grid_rows(n, seed=seed)), size=3), backward=True)


def network():
    class Block(torch.nn.Module):
        def __init__(self, c):
            super().__init__()
            self.a, self.norm, self.b = snn.SubMConv3d(c, c, 3, bias=False), snn.BatchNorm(c, relu=True), snn.SubMConv3d(c, c, 3)

        def forward(self, x):
            return x + self.b(self.norm(self.a(x)))

    return snn.Sequential(
        snn.SubMConv3d(4, 8, 3, key="s1"), Block(8), snn.SparseConv3d(8, 16, 2, stride=2, key="d1"),
        snn.SparseInverseConv3d(16, 8, 2, key="d1"), snn.MaxPool3d(2), snn.GlobalPool("mean"),
    )  # fmt: skip


def scan(n, seed=1):
    return spops.SparseTensor(torch.randn(n, 4), grid_rows(n, seed=seed), (12, 12, 12), 2)


# ---- Plans as values ------------------------------------------------------------------------------


def test_a_plan_is_pickled_with_what_it_was_made_from():
    plan, x, w = conv_plan(), torch.randn(120, 4), torch.randn(27, 4, 8)
    again, twice = pickle.loads(pickle.dumps((plan, plan)))
    assert again is twice and again.ints == plan.ints
    assert torch.equal(F.sparseconv(x, w, again), F.sparseconv(x, w, plan))
    file = io.BytesIO()
    torch.save({"plan": plan}, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)["plan"].ints == plan.ints
    voxels = F.voxels(torch.rand(100, 3), size_m=0.25, origin_m=[0.0, 0.0, 0.0])
    part = pickle.loads(pickle.dumps(F.voxels_segments(voxels)))
    assert part.kind == "segments" and part.ints == F.voxels_segments(voxels).ints
    assert copy.deepcopy(plan) is plan and copy.copy(plan) is plan


def test_a_plan_knows_when_what_it_was_made_from_has_changed():
    keys = torch.zeros(10, dtype=torch.int32)
    plan = F.segments(keys, 4)
    keys[3] = 2
    with pytest.raises(RuntimeError, match="has been written to since"):
        pickle.dumps(plan)
    F.segreduce(torch.ones(10, 1), plan)  # the plan itself is as it was


@pytest.mark.parametrize("target", DEVICES)
def test_a_plan_on_another_device(target):
    plan, x, w = conv_plan(), torch.randn(120, 4), torch.randn(27, 4, 8)
    there = plan.to(target)
    assert there.device.type == target and there.ints[:3] == plan.ints[:3]
    y = F.sparseconv(x.to(target), w.to(target), there)
    torch.testing.assert_close(y.to(x.device), F.sparseconv(x, w, plan), rtol=1e-4, atol=1e-4)
    assert (there is plan) == (target == x.device.type)
    bev = dict(num_batches=1, num_cameras=1, num_depths=2, feature_height=2, feature_width=2, num_cells_x=2, num_cells_y=2,
               num_cells_z=1, input_height=8, input_width=8, grid_lower_m=[0.0, 0, 0], cell_size_m=[1.0, 1, 1])  # fmt: skip
    assert F.bev_plan(**bev, device="cpu").to(target).device.type == target


def test_pytrees_take_plans_apart():
    from torch.utils import _pytree

    plan, x, w = conv_plan(), torch.randn(120, 4), torch.randn(27, 4, 8)
    leaves, spec = _pytree.tree_flatten({"plan": plan, "x": x})
    assert leaves[0] is plan.token and leaves[1:-1] == list(plan.ints)
    again = _pytree.tree_unflatten(leaves, spec)["plan"]
    del plan
    assert torch.equal(F.sparseconv(x, w, again), F.sparseconv(x, w, conv_plan()))


# ---- Compilers ------------------------------------------------------------------------------------


def counted(backend="aot_eager"):
    graphs = []

    def count(gm, inputs):
        graphs.append(gm)
        return torch._dynamo.lookup_backend(backend)(gm, inputs)

    return graphs, count


def test_a_network_is_compiled_whole_and_once_more():
    """One graph, and one recompilation, for scans of all sizes, forward and backward."""
    torch._dynamo.reset()
    net = network()
    graphs, count = counted()
    backwards = []
    compiled = torch.compile(net, backend=count, fullgraph=True)
    for i, n in enumerate((100, 150, 220, 90)):
        x = scan(n, seed=i)
        before = {k: v.clone() for k, v in net.state_dict().items()}
        spops.prepare(net, x)
        for k, v in net.state_dict().items():
            assert type(v) is torch.Tensor and torch.equal(v, before[k]), f"prepare changed {k}"
        y = compiled(x)
        backwards.append(y.grad_fn.name())
        grads = torch.autograd.grad(y.square().sum(), list(net.parameters()))
        net.load_state_dict(before)
        ref = net(x)
        torch.testing.assert_close(y, ref)
        for g, h in zip(grads, torch.autograd.grad(ref.square().sum(), list(net.parameters()))):
            torch.testing.assert_close(g, h, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 2, f"{len(graphs)} graphs for four sizes"
    assert all("CompiledFunction" in b for b in backwards)  # the gradient is compiled too


def test_a_compiled_network_makes_no_plans():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="spops.prepare makes those of a network"):
        torch.compile(network(), backend="eager", fullgraph=True)(scan(50))


def test_export_takes_a_plan():
    class Layer(torch.nn.Module):
        def forward(self, x, w, plan):
            return torch.relu(F.sparseconv(x, w, plan))

    plan, x, w = conv_plan(), torch.randn(120, 4), torch.randn(27, 4, 8)
    program = torch.export.export(Layer(), (x, w, plan), strict=False)
    assert any("spops.sparseconv" in str(n.target) for n in program.graph.nodes)
    assert torch.equal(program.module()(x, w, plan), Layer()(x, w, plan))


def test_vmap_is_refused():
    plan, w = conv_plan(), torch.randn(27, 4, 8)
    with pytest.raises(NotImplementedError, match="spops.sparseconv: vmap is not there: rows of several samples go into one call"):
        torch.vmap(lambda x: F.sparseconv(x, w, plan))(torch.randn(3, 120, 4))


# ---- Replicas -------------------------------------------------------------------------------------


def _replica(rank, folder):
    limit = datetime.timedelta(seconds=60)  # the other process may have failed
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=limit)
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(network())
    net(scan(80 + 40 * rank, seed=rank)).square().sum().backward()
    torch.save([p.grad for p in net.parameters()], f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_replicas_add_their_gradients(device, tmp_path):
    """DistributedDataParallel over two processes, with scans of other sizes in each."""
    if device.type != "cpu":
        pytest.skip("two processes on the CPU")
    code = f"import torch, test_torch; torch.set_num_threads(1); test_torch._replica(1, {str(tmp_path)!r})"
    path = os.pathsep.join([str(Path(spops.__file__).parents[1]), *filter(None, map(os.path.abspath, sys.path))])
    other = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": path})
    _replica(0, tmp_path)
    assert other.wait(60) == 0
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    torch.manual_seed(0)
    net = network()
    expected = None
    for rank in range(2):
        torch.manual_seed(0)
        network()  # draws as many numbers as in the replica
        net.zero_grad()
        net(scan(80 + 40 * rank, seed=rank)).square().sum().backward()
        g = [p.grad.clone() for p in net.parameters()]
        expected = g if expected is None else [a + b for a, b in zip(expected, g)]
    for a, b, e in zip(results[0], results[1], expected):
        torch.testing.assert_close(a, e / 2, rtol=1e-4, atol=1e-6)
        assert torch.equal(a, b)


def test_sharded_modules_leave_plans_alone(device, tmp_path):
    """FSDP's fully_shard over one process: inputs with plans in them arrive as they are."""
    if device.type != "cpu":
        pytest.skip("one process on the CPU")
    from torch.distributed.fsdp import fully_shard

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(27, 4, 8))

        def forward(self, x, plan):
            return F.sparseconv(x, self.w, plan)

    layer, plan, x = Layer(), conv_plan(), torch.randn(120, 4)
    ref = layer(x, plan).detach()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(layer, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
        y = layer(x, plan)
        assert torch.equal(y, ref)
        y.sum().backward()
        assert layer.w.grad is not None
    finally:
        torch.distributed.destroy_process_group()
