# SPDX-License-Identifier: Apache-2.0
"""Attention over patches of rows beside PyTorch's flash and cuDNN attention, in one run.

    python python/bench/attention.py [--samples 15] [--calls 5] [--output FILE]    a GPU; one JSON object a line
    python python/bench/attention.py --device cpu                                  small patches, f32: results alone are looked at

Three ways of the same work, bf16, on the same rows:

    spops       reads Q, K and V of every patch where they lie, and writes O where it belongs. Patches are buckets of up to 512 neighbouring
                rows in a random order; where a gather is compared too, all rows are in a random order
    flash,      scaled_dot_product_attention on rows that are in the order of their patches already
    cudnn
    gathered    what Point Transformer V3 does around it: rows into the order of patches, split into Q, K and V, variable-length flash
                attention, rows back

Times are medians over CUDA events around several calls, host time hidden by the calls before; backward is that of grad_q, grad_k and grad_v.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import spops.functional as F

ROOT = Path(__file__).resolve().parents[2]
BUCKET_ROWS = 512
# patches, rows of each, heads, columns of a head; the last ones with what has to be moved around them
CASES = (120, 1024, 8, 64), (30, 4096, 8, 64), (480, 256, 8, 64), (120, 1024, 16, 32), (120, 1024, 32, 16), (120, 1024, 4, 128)
GATHERED = (120, 1024, 2, 64), (960, 128, 8, 64)
SMALL = ((6, 128, 2, 16), (3, 64, 1, 32))  # on the CPU
MOST_DIFFERENCE = 0.05  # of the largest element: bf16


def time_ms(call, a) -> float | None:
    """Median time of a call, over samples of so many calls, after a warm one; on the CPU it runs, and nothing is timed."""
    call()
    if a.device == "cpu":
        return None
    times = []
    for _ in range(a.samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(a.calls):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / a.calls)
    return statistics.median(times)


def difference(found, right) -> float:
    return ((found.float() - right.float()).abs().max() / right.float().abs().max()).item()


def compare(case, gathered, a) -> dict:
    """One row of the table."""
    num_patches, rows, heads, dim = case
    n, dtype = num_patches * rows, torch.float32 if a.device == "cpu" else torch.bfloat16
    torch.manual_seed(1)
    qkv = torch.randn(n, 3, heads * dim, device=a.device, dtype=dtype)
    grad_o = torch.randn(n, heads * dim, device=a.device, dtype=dtype)
    bucket = 1 if gathered else min(rows, BUCKET_ROWS)
    buckets = torch.randperm(n // bucket, device=a.device)
    order = (buckets[:, None] * bucket + torch.arange(bucket, device=a.device)).flatten()  # entry e of the patches is row order[e]
    plan = F.patches(torch.arange(0, n + 1, rows, dtype=torch.int32, device=a.device), n, query_rows=order.int())
    q, k, v = qkv.unbind(1)
    o, lse = torch.full_like(grad_o, float("nan")), torch.empty(n, heads, device=a.device)
    grads = torch.full_like(qkv, float("nan"))
    gq, gk, gv = grads.unbind(1)

    def forward():
        F.attention(q, k, v, plan, heads=heads, o=o, lse=lse)

    def backward():
        F.attention_backward(q, k, v, o, lse, grad_o, plan, heads=heads, grad_q=gq, grad_k=gk, grad_v=gv)

    def in_patches(x):
        return x[order].view(num_patches, rows, heads, dim).transpose(1, 2).contiguous()

    row = {"patches": num_patches, "rows": rows, "heads": heads, "dim": dim, "spops_forward_ms": time_ms(forward, a), "spops_backward_ms": time_ms(backward, a)}
    tensors, grad = [in_patches(x).requires_grad_() for x in (q, k, v)], in_patches(grad_o)
    attention = torch.nn.functional.scaled_dot_product_attention
    for name, kind in a.kinds.items():
        with sdpa_kernel(kind):
            right = attention(*tensors)
            right_grads = torch.autograd.grad(right, tensors, grad, retain_graph=True)
            with torch.no_grad():
                row[f"{name}_forward_ms"] = time_ms(lambda: attention(*tensors), a)
            row[f"{name}_backward_ms"] = time_ms(lambda: torch.autograd.grad(right, tensors, grad, retain_graph=True), a)
        row[f"{name}_difference"] = difference(in_patches(o), right.detach())
        row[f"{name}_grad_difference"] = max(difference(in_patches(ours), theirs) for ours, theirs in zip((gq, gk, gv), right_grads))
    if gathered:
        inverse = torch.argsort(order)
        offsets = torch.arange(0, n + 1, rows, dtype=torch.int32, device=a.device)

        def around():
            parts = qkv.view(n, 3, heads, dim)[order].unbind(1)
            return torch.ops.aten._flash_attention_forward(*parts, offsets, offsets, rows, rows, 0.0, False, False)[0][inverse]

        with torch.no_grad():
            row["gathered_forward_ms"] = time_ms(around, a)
            row["gathered_difference"] = difference(o, around().flatten(1))
    return row


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--samples", type=int, default=15)
    p.add_argument("--calls", type=int, default=5, help="calls of a sample")
    p.add_argument("--output", help="append one JSON object for each case to this file")
    a = p.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        p.error("PyTorch finds no GPU")
    a.kinds = {"math": SDPBackend.MATH} if a.device == "cpu" else {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    return a


def main():
    a = arguments()
    device = "CPU" if a.device == "cpu" else torch.cuda.get_device_name()
    commit = os.environ.get("SPOPS_COMMIT") or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    facts = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit, "device": device, "command": "python python/bench/attention.py"}
    wrong = []
    print(f"{device}, PyTorch {torch.__version__}, {'f32' if a.device == 'cpu' else 'bf16, ms'}")
    for case in SMALL if a.device == "cpu" else CASES + GATHERED:
        row = compare(case, case in GATHERED, a)
        times = ", ".join(f"{name[:-3].replace('_', ' ')} {ms:.3f}" for name, ms in row.items() if name.endswith("_ms") and ms is not None)
        apart = {name: value for name, value in row.items() if name.endswith("difference")}
        print(f"{case[0]} patches of {case[1]} rows, {case[2]} x {case[3]}: {times or f'differences at most {max(apart.values()):.1e}'}", flush=True)
        wrong += [f"{case}: {name} is {value:.3g} of the largest element" for name, value in apart.items() if not value < MOST_DIFFERENCE]
        if a.output:
            with open(a.output, "a", encoding="utf-8") as file:
                file.write(json.dumps({**row, **facts}) + "\n")
    for line in wrong:
        print(f"WRONG: {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
