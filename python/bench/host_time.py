# SPDX-License-Identifier: Apache-2.0
"""Host time of an eager call: a convolution of a few rows, its plan kept.

    python python/bench/host_time.py

Prints microseconds of thread CPU time, the best of ten rounds, with the library's own work on 16 rows
and 2 channels in them; and what torch takes for a call of the same kind.
"""
import time

import torch

import spops.functional as F
from spops._made import module


def microseconds(f, rounds=10, calls=2000):
    for _ in range(200):
        f()
    best = float("inf")
    for _ in range(rounds):
        begin = time.thread_time()
        for _ in range(calls):
            f()
        best = min(best, (time.thread_time() - begin) / calls)
    return 1e6 * best


def main():
    torch.set_num_threads(1)
    rows = torch.zeros(16, 4, dtype=torch.int32)
    rows[:, 3] = torch.arange(16)
    map = F.kernel_map(F.coords(rows), size=3, contents="table|order|pairs|csr|reverse")
    plan = F.sparseconv_plan(map, backward=True)
    x, w, bias = torch.randn(16, 2), torch.randn(27, 2, 2), torch.randn(2)
    out = torch.empty(16, 2)
    entry = module.sparseconv
    print(f"library alone, through tvm-ffi       {microseconds(lambda: entry(x, w, bias, plan.handle, out, None, 1, 0, 0, 0, 1)):6.1f}")
    print(f"F.sparseconv                         {microseconds(lambda: F.sparseconv(x, w, plan, bias=bias)):6.1f}")
    xg, wg, bg = (t.clone().requires_grad_() for t in (x, w, bias))
    print(f"F.sparseconv, gradients wanted       {microseconds(lambda: F.sparseconv(xg, wg, plan, bias=bg)):6.1f}")
    v, m = torch.randn(16, 2), torch.randn(2, 2)
    print(f"torch.nn.functional.linear           {microseconds(lambda: torch.nn.functional.linear(v, m, bias)):6.1f}")
    mg = m.clone().requires_grad_()
    print(f"torch.nn.functional.linear, gradient {microseconds(lambda: torch.nn.functional.linear(v, mg, bg)):6.1f}")


if __name__ == "__main__":
    main()
