# SPDX-License-Identifier: Apache-2.0
"""Communicators: ranks as threads on every device, and NCCL of one rank through torch.distributed."""
import threading
import weakref

import pytest
import torch

from spops import comm as sc


def run_ranks(n, device, body, timeout_ms=60000):
    """body(comm) on n threads; its results by rank, or the exception of the lowest rank."""
    group, results, errors = sc.Group(n), [None] * n, [None] * n

    def rank(r):
        try:
            with sc.Comm.of_threads(group, r, device, timeout_ms) as comm:
                results[r] = body(comm)
        except BaseException as error:  # also those of pytest
            errors[r] = error

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results, errors


def whole(results, errors):
    for error in errors:
        if error is not None:
            raise error
    return results


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("beside", [False, True])
def test_exchange(device, n, beside):
    def body(comm):
        # r + o rows from rank r to rank o
        counts = [comm.rank + o for o in range(n)]
        offsets = [sum(counts[:o]) for o in range(n)]
        send = torch.arange(sum(counts) * 3, device=device).view(-1, 3) + 1000 * comm.rank
        recv = torch.full((sum(counts) + 1, 3), -1, dtype=torch.int64, device=device)
        if beside:
            comm.begin_exchange(send, recv, counts, offsets, counts, offsets)
            comm.end_exchange()
        else:
            comm.exchange(send, recv, counts, offsets, counts, offsets)
        comm.wait()
        return send.cpu(), recv.cpu()

    results = whole(*run_ranks(n, device, body))
    for r, (_, recv) in enumerate(results):
        expected = [results[o][0][sum(o + k for k in range(r)) :][: o + r] for o in range(n)]
        assert torch.equal(recv[:-1], torch.cat(expected)) and bool((recv[-1] == -1).all())


def test_rows_on_the_way_are_kept(device, monkeypatch):
    """What begin_exchange was given lives until end_exchange is through, though the caller has let it go."""
    real, alive = sc._exchange_end, []

    def body(comm):
        send = torch.full((2, 1000), 7.0 + comm.rank, device=device)
        recv = torch.zeros(2, 1000, device=device)
        refs[comm.rank] = weakref.ref(send)
        comm.begin_exchange(send, recv, [1, 1], [0, 1], [1, 1], [0, 1])
        del send
        comm.end_exchange()
        comm.wait()
        assert comm._moving is None
        return recv.cpu()

    def end(*arguments):
        alive.append(all(ref() is not None for ref in refs if ref is not None))
        return real(*arguments)

    refs = [None, None]
    monkeypatch.setattr(sc, "_exchange_end", end)
    for recv in whole(*run_ranks(2, device, body)):
        assert bool((recv[0] == 7).all()) and bool((recv[1] == 8).all())
    assert len(alive) == 2 and alive[0]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_sum_and_broadcast(device, n):
    parts = torch.randn(8, 515, generator=torch.Generator("cpu").manual_seed(3), device="cpu") * 1e3
    expected = parts[0].clone()
    for p in parts[1:]:
        expected += p
    offsets = [8 * r // n for r in range(n + 1)]

    def body(comm):
        rows = torch.full((4, 5), float(comm.rank), device=device)
        comm.broadcast(rows, n - 1)
        out = comm.sum(parts[offsets[comm.rank] : offsets[comm.rank + 1]].to(device), offsets)
        comm.wait()
        return rows.cpu(), out.cpu()

    for rows, out in whole(*run_ranks(n, device, body)):
        assert bool((rows == n - 1).all())
        assert torch.equal(out, expected)


def test_values_and_errors(device):
    def body(comm):
        assert comm.gather(bytes([comm.rank, 7])) == [bytes([r, 7]) for r in range(3)]
        comm.barrier()
        comm.agree()
        with pytest.raises(RuntimeError, match="rank 1: ValueError: too many"):
            comm.agree(ValueError("too many") if comm.rank >= 1 else None)
        rows = torch.zeros(2, 2, device=device)
        with pytest.raises(ValueError, match="expected rows without gaps"):
            comm.broadcast(rows.t())
        with pytest.raises(ValueError, match="send_counts has 1 numbers, expected 3"):
            comm.exchange(rows, rows, [0], [0], [0], [0])
        with pytest.raises(ValueError, match="root is 9, expected 0 to 2"):
            comm.broadcast(rows, 9 if comm.rank == 1 else 0)
        comm.barrier()

    whole(*run_ranks(3, device, body))


def test_a_rank_that_stops(device):
    def body(comm):
        comm.barrier()
        if comm.rank == 0:
            return  # closes its end
        with pytest.raises(sc.CommBroken, match="rank 0 has destroyed its end"):
            comm.barrier()

    whole(*run_ranks(3, device, body))
    comm = sc.Comm.of_threads(sc.Group(2), 0, device, timeout_ms=100)
    with pytest.raises(sc.CommBroken, match="rank 1 did not come to comm_barrier_sync within 100 ms"):
        comm.barrier()
    comm.close()
    with pytest.raises(ValueError, match="closed"):
        comm.barrier()


def test_of_process_group(device, tmp_path):
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("torch without torch.distributed")
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        if device.type == "cpu":
            with pytest.raises(NotImplementedError, match="need CUDA"):
                sc.Comm.of_process_group(device=device)
            return
        try:
            comm = sc.Comm.of_process_group(device=device)
        except NotImplementedError as error:
            pytest.skip(str(error))  # no NCCL
        with comm:
            rows = torch.arange(12.0, device=device).view(4, 3)
            got = torch.zeros_like(rows)
            comm.exchange(rows, got, [4], [0], [4], [0])
            comm.wait()
            assert torch.equal(rows, got)
            assert torch.equal(comm.sum(rows, [0, 4]).cpu(), (rows[0] + rows[1] + rows[2] + rows[3]).cpu())
    finally:
        dist.destroy_process_group()
