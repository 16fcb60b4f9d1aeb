# SPDX-License-Identifier: Apache-2.0
"""Host time of an eager call: a convolution of a few rows, its plan kept.

    python python/bench/host_time.py [--device cpu|cuda]

Prints microseconds of thread CPU time, the best of ten rounds, and what torch takes for a call of the
same kind. On the CPU the library's own work on 16 rows and 2 channels is in them; on CUDA they are
what it takes to enqueue, and rounds are short, so that no call waits for room in the stream.
"""
import argparse
import time

import torch

import spops.functional as F
from spops._made import module
from spops._rows import operators


def microseconds(f, device, rounds=10, calls=2000):
    for _ in range(200):
        f()
    best = float("inf")
    if device == "cuda":
        rounds, calls = 10 * rounds, 200
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.thread_time()
        for _ in range(calls):
            f()
        best = min(best, (time.thread_time() - begin) / calls)
    return 1e6 * best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}; us of the thread's time")
    rows = torch.zeros(16, 4, dtype=torch.int32)
    rows[:, 3] = torch.arange(16)
    rows = rows.to(device)
    map = F.kernel_map(F.coords(rows), size=3, contents="table|order|pairs|csr|reverse")
    plan = F.sparseconv_plan(map, backward=True)
    x, w, bias = (torch.randn(s, device=device) for s in ((16, 2), (27, 2, 2), (2,)))
    out = torch.empty(16, 2, device=device)
    entry = module.sparseconv
    numbers = [a.default for a in operators["sparseconv"].attributes]  # and what is present
    print(f"library alone, through tvm-ffi       {microseconds(lambda: entry(x, w, bias, plan.handle, out, None, *numbers, 1), device):6.1f}")
    print(f"F.sparseconv                         {microseconds(lambda: F.sparseconv(x, w, plan, bias=bias), device):6.1f}")
    xg, wg, bg = (t.clone().requires_grad_() for t in (x, w, bias))
    print(f"F.sparseconv, gradients wanted       {microseconds(lambda: F.sparseconv(xg, wg, plan, bias=bg), device):6.1f}")
    v, m = torch.randn(16, 2, device=device), torch.randn(2, 2, device=device)
    print(f"torch.nn.functional.linear           {microseconds(lambda: torch.nn.functional.linear(v, m, bias), device):6.1f}")
    mg = m.clone().requires_grad_()
    print(f"torch.nn.functional.linear, gradient {microseconds(lambda: torch.nn.functional.linear(v, mg, bg), device):6.1f}")


if __name__ == "__main__":
    main()
