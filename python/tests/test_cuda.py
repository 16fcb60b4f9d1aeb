# SPDX-License-Identifier: Apache-2.0
"""Streams, captured graphs and memory of CUDA devices."""
import gc

import pytest
import torch
from conftest import DEVICES, grid_rows

import spops
import spops.functional as F
import spops.nn as snn

pytestmark = pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device, or a library without CUDA")


@pytest.fixture(autouse=True)
def device():
    torch.manual_seed(7)
    torch.set_default_device("cuda:0")
    yield torch.device("cuda:0")
    torch.cuda.synchronize()
    torch.set_default_device(None)


def layer(n=300, c=16, seed=1):
    rows = grid_rows(n, seed=seed)
    plan = F.sparseconv_plan(F.kernel_map(F.coords(rows), size=3), backward=True)
    return rows, plan, torch.randn(n, c), torch.randn(27, c, c) / 20


def test_plans_lie_in_torchs_memory():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    plan = F.segments(torch.randint(0, 1000, (1_000_000,), dtype=torch.int32), 1000)
    torch.cuda.synchronize()
    with_plan, bytes = torch.cuda.memory_allocated(), plan.bytes
    assert with_plan - before >= bytes > 4_000_000
    del plan
    gc.collect()
    assert with_plan - torch.cuda.memory_allocated() >= bytes  # scratch of the stream's context stays


def test_work_is_on_torchs_stream():
    """A stream that sleeps first: what is computed from what it writes later is right."""
    rows, plan, x, w = layer()
    ref = F.sparseconv(x, w, plan)
    side = torch.cuda.Stream()
    late_rows, late_x = torch.zeros_like(rows), torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late_rows.copy_(rows), late_x.copy_(x)
        map = F.kernel_map(F.coords(late_rows), size=3)
        torch.cuda._sleep(20_000_000)
        other = F.sparseconv_plan(map, backward=True)
        got = F.sparseconv(late_x, w, other)
        assert other.stream == side.cuda_stream != 0
    side.synchronize()
    assert torch.equal(got, ref)


def test_a_plan_outlives_its_use_on_another_stream():
    """Its memory is not given to somebody else while a stream that it was not made on reads it."""
    rows, plan, x, w = layer(400)
    ref = F.sparseconv(x, w, plan)
    side = torch.cuda.Stream()
    for _ in range(10):
        _, plan, _, _ = layer(400)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(5_000_000)
            got = F.sparseconv(x, w, plan)
        del plan
        gc.collect()
        junk = [torch.full((n,), -1, dtype=torch.int32) for n in (100, 400, 1600, 10000, 50000) for _ in range(20)]
        torch.cuda.current_stream().wait_stream(side)
        assert torch.equal(got, ref)
        del junk


def test_two_streams_at_once():
    parts = [layer(500, seed=s) for s in (1, 2)]
    refs = [F.sparseconv(x, w, p) for _, p, x, w in parts]
    streams = [torch.cuda.Stream() for _ in parts]
    torch.cuda.synchronize()
    outs = []
    for _ in range(20):
        for s, (_, p, x, w) in zip(streams, parts):
            with torch.cuda.stream(s):
                outs.append(F.sparseconv(x, w, p))
    torch.cuda.synchronize()
    for i, o in enumerate(outs):
        assert torch.equal(o, refs[i % 2])


def capture(f):
    """f captured, without a call before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = f()
    return graph, out


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_capture_needs_no_call_before(reduce):
    """Scratch of captured calls is the graph's: one long segment is split, and its parts lie there."""
    keys = torch.zeros(200_000, dtype=torch.int32)
    plan = F.segments(keys, 4, num_rows=200_000, gradients="all", max_cols=32)
    x = torch.randn(200_000, 32)
    graph, out = capture(lambda: F.segreduce(x, plan, reduce=reduce))
    other = torch.cuda.Stream()
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn_like(x))
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            graph.replay()
        torch.cuda.current_stream().wait_stream(other)
        assert torch.equal(out, F.segreduce(x, plan, reduce=reduce))


def test_captured_training_step():
    """Forward, backward and optimiser in one graph, replayed with other features."""
    rows, _, x, _ = layer(400)
    net = snn.Sequential(snn.SubMConv3d(16, 16, 3), snn.BatchNorm(16, relu=True), snn.SparseConv3d(16, 32, 2, stride=2, key="d"),
                         torch.nn.ReLU(), snn.SparseInverseConv3d(32, 4, 2, key="d"))  # fmt: skip
    t = spops.SparseTensor(x, rows, (12, 12, 12), 2)
    target = torch.randn(400, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

    def step():
        loss = (net(t).feats - target).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with torch.cuda.stream(torch.cuda.Stream()):
        step()  # plans of the network's maps; gradients have memory
        optimizer.zero_grad(set_to_none=False)
    torch.cuda.synchronize()
    state = {k: v.clone() for k, v in net.state_dict().items()}

    def zeroed_step():
        optimizer.zero_grad(set_to_none=False)
        return step()

    graph, loss = capture(zeroed_step)
    net.load_state_dict(state)
    losses = []
    for _ in range(5):
        graph.replay()
        losses.append(loss.item())
    captured = {k: v.clone() for k, v in net.state_dict().items()}
    net.load_state_dict(state)
    eager = [zeroed_step().item() for _ in range(5)]
    assert losses == eager and losses[-1] < losses[0]
    for k, v in net.state_dict().items():
        assert torch.equal(v, captured[k]), k


def test_memory_does_not_grow():
    """New coordinates each step, as in training."""
    net = snn.Sequential(snn.SubMConv3d(4, 8, 3), snn.BatchNorm(8, relu=True), snn.SparseConv3d(8, 8, 2, stride=2))
    rows = grid_rows(300)

    def step(i):
        x = spops.SparseTensor(torch.randn(300, 4), (rows + i % 3), None, 2 + i % 3)
        net(x).feats.square().mean().backward()
        net.zero_grad(set_to_none=True)

    def memory(steps):
        for i in range(steps):
            step(i)
        gc.collect()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), total - free

    rounds = [memory(30)] + [memory(100) for _ in range(3)]
    assert rounds[-1][0] <= rounds[0][0] and rounds[-1][1] <= rounds[0][1]
    # What torch does not know of. Other programs use the device too; a leak grows in every round.
    assert min(b[2] - a[2] for a, b in zip(rounds, rounds[1:])) <= 2 << 20


def test_errors_are_exceptions_and_leave_nothing_behind():
    _, plan, x, w = layer()
    with pytest.raises(ValueError, match="expected memory of the CUDA device|in host memory"):
        F.sparseconv(x, w.cpu(), plan)
    with pytest.raises(ValueError):
        F.sparseconv(x.cpu(), w.cpu(), plan)
    F.sparseconv(x, w, plan)


def test_torchs_memory_that_is_out_is_an_exception():
    total = torch.cuda.mem_get_info()[1]
    keys = torch.zeros(1000, dtype=torch.int32)
    fraction = 1e-9 + torch.cuda.memory_reserved() / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, fraction))
    try:
        with pytest.raises((MemoryError, torch.OutOfMemoryError)):
            big = [F.segments(keys, 2**30) for _ in range(4)]
            del big
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    F.segments(keys, 10)
