#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time attention over patches of rows beside PyTorch's flash and cuDNN attention, in one run.

Three ways of the same work, bf16, on the same rows:

  spops     reads Q, K and V of every patch where they lie, and writes O where it belongs. Patches are
            buckets of up to 512 neighbouring rows in a random order; where a gather is compared too,
            all rows are in a random order
  flash,    scaled_dot_product_attention on rows that are in the order of their patches already
  cudnn
  gathered  what Point Transformer V3 does around it: rows into the order of patches, split into Q, K
            and V, variable-length flash attention, rows back

Times are medians over CUDA events around several calls; backward is that of grad_q, grad_k and grad_v.
Results are compared with each other. One JSON object a line with --output.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
from datetime import date

from compare_scipy import ContextOptions, Matrix

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit("compare_torch.py: PyTorch is not installed; nothing to compare with")

BUCKET_ROWS = 512
# patches, rows of each, heads, dim; the last ones with what has to be moved around them
CASES = [
    (120, 1024, 8, 64),
    (30, 4096, 8, 64),
    (480, 256, 8, 64),
    (120, 1024, 16, 32),
    (120, 1024, 32, 16),
    (120, 1024, 4, 128),
]
GATHERED = [(120, 1024, 2, 64), (960, 128, 8, 64)]
BACKEND_CUDA, DTYPE_BF16 = 2, 2


class PatchLists(ctypes.Structure):
    _fields_ = [
        ("num_patches", ctypes.c_int64),
        ("query_offsets", ctypes.c_void_p),
        ("query_rows", ctypes.c_void_p),
        ("key_offsets", ctypes.c_void_p),
        ("key_rows", ctypes.c_void_p),
        ("num_key_rows", ctypes.c_int64),
    ]


class AttentionOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("heads", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("qkv_head_stride", ctypes.c_int64),
        ("o_head_stride", ctypes.c_int64),
        ("math", ctypes.c_int),
        ("rotary", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    ]


class Spops:
    """The calls of the library that are timed, on PyTorch's current stream."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.spops_last_error.restype = ctypes.c_char_p
        self.lib.spops_last_error.argtypes = [ctypes.c_void_p]
        self.lib.spops_attention_scratch_bytes.restype = ctypes.c_size_t
        self.ctx = ctypes.c_void_p()
        options = ContextOptions(ctypes.sizeof(ContextOptions), BACKEND_CUDA)
        options.stream = torch.cuda.current_stream().cuda_stream
        self.check(self.lib.spops_context_create(ctypes.byref(options), ctypes.byref(self.ctx)))

    def check(self, status):
        if status != 0:
            sys.exit(f"compare_torch.py: {self.lib.spops_last_error(self.ctx).decode()}")

    def patches(self, num_patches, rows, order):
        """A plan of patches of as many rows, those of the entries in order."""
        offsets = torch.arange(0, (num_patches + 1) * rows, rows, dtype=torch.int32, device="cuda")
        lists = PatchLists(num_patches, offsets.data_ptr(), order.data_ptr(), None, None)
        plan = ctypes.c_void_p()
        self.check(
            self.lib.spops_patches_create(
                self.ctx, ctypes.c_int64(order.numel()), ctypes.byref(lists), ctypes.byref(plan)
            )
        )
        return plan

    def reserve(self, plan, cols, options):
        size = self.lib.spops_attention_scratch_bytes(
            plan, ctypes.c_int64(cols), DTYPE_BF16, ctypes.byref(options), 1
        )
        self.check(self.lib.spops_context_reserve(self.ctx, ctypes.c_size_t(size)))

    def forward(self, plan, q, k, v, options, o, lse):
        self.check(
            self.lib.spops_attention_execute(
                self.ctx, plan, q, k, v, ctypes.byref(options), o, ctypes.c_void_p(lse.data_ptr())
            )
        )

    def backward(self, plan, grad_o, q, k, v, o, lse, options, grads):
        self.check(
            self.lib.spops_attention_execute_backward(
                self.ctx, plan, grad_o, q, k, v, o, ctypes.c_void_p(lse.data_ptr()),
                ctypes.byref(options), *(ctypes.byref(g) for g in grads), None, None, None,
            )
        )


def matrix(rows):
    """A view of [rows, heads, dim], whose last two axes lie together."""
    return Matrix(
        rows.data_ptr(), rows.shape[0], rows.shape[1] * rows.shape[2], rows.stride(0), DTYPE_BF16
    )


def time_ms(call, samples, calls):
    """Median time of a call, over samples of so many calls, after a warm one."""
    call()
    times = []
    for _ in range(samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def difference(what, right):
    return ((what.float() - right.float()).abs().max() / right.float().abs().max()).item()


def compare(spops, case, gathered, samples, calls):
    """One row of the table, as a dict."""
    num_patches, rows, heads, dim = case
    n = num_patches * rows
    torch.manual_seed(1)
    qkv = torch.randn(n, 3, heads, dim, device="cuda", dtype=torch.bfloat16)
    grad_o = torch.randn(n, heads, dim, device="cuda", dtype=torch.bfloat16)
    bucket = 1 if gathered else min(rows, BUCKET_ROWS)
    buckets = torch.randperm(n // bucket, device="cuda")
    # Entry e of the patches is row order[e].
    order = (buckets[:, None] * bucket + torch.arange(bucket, device="cuda")).flatten()
    inverse = torch.argsort(order)
    row = {"patches": num_patches, "rows": rows, "heads": heads, "dim": dim}

    options = AttentionOptions(ctypes.sizeof(AttentionOptions), heads)
    plan = spops.patches(num_patches, rows, order.to(torch.int32))
    spops.reserve(plan, heads * dim, options)
    o = torch.full((n, heads, dim), float("nan"), device="cuda", dtype=torch.bfloat16)
    lse = torch.empty(n, heads, device="cuda")
    grads = torch.full_like(qkv, float("nan"))
    q, k, v = (matrix(qkv[:, i]) for i in range(3))
    grad_views = [matrix(grads[:, i]) for i in range(3)]

    def forward():
        spops.forward(plan, q, k, v, options, matrix(o), lse)

    def backward():
        spops.backward(plan, matrix(grad_o), q, k, v, matrix(o), lse, options, grad_views)

    row["spops_forward_ms"] = time_ms(forward, samples, calls)
    row["spops_backward_ms"] = time_ms(backward, samples, calls)

    def in_patches(x):
        return x[order].view(num_patches, rows, heads, dim).transpose(1, 2).contiguous()

    tensors = [in_patches(qkv[:, i]).requires_grad_() for i in range(3)]
    grad = in_patches(grad_o)
    for name, kind in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        attention = torch.nn.functional.scaled_dot_product_attention
        with sdpa_kernel(kind):
            right = attention(*tensors)
            right_grads = torch.autograd.grad(right, tensors, grad, retain_graph=True)
            with torch.no_grad():
                row[f"{name}_forward_ms"] = time_ms(lambda: attention(*tensors), samples, calls)
            row[f"{name}_backward_ms"] = time_ms(
                lambda: torch.autograd.grad(right, tensors, grad, retain_graph=True), samples, calls
            )
        row[f"{name}_difference"] = difference(in_patches(o), right.detach())
        row[f"{name}_grad_difference"] = max(
            difference(in_patches(grads[:, i]), right_grads[i]) for i in range(3)
        )
    if gathered:
        offsets = torch.arange(0, n + 1, rows, dtype=torch.int32, device="cuda")

        def around():
            parts = qkv[order].unbind(1)
            out = torch.ops.aten._flash_attention_forward(
                *parts, offsets, offsets, rows, rows, 0.0, False, False
            )[0]
            return out[inverse]

        with torch.no_grad():
            row["gathered_forward_ms"] = time_ms(around, samples, calls)
            row["gathered_difference"] = difference(o, around())
    spops.lib.spops_patches_destroy(plan)
    return row


def commit():
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default="build/libspops.so", help="libspops.so with CUDA")
    parser.add_argument("--output", help="append one JSON object for each case to this file")
    parser.add_argument("--commit", default=commit(), help="what the figures are noted with")
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--calls", type=int, default=5, help="calls of a sample")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("compare_torch.py: PyTorch finds no GPU")
    device = torch.cuda.get_device_name()
    wrong = []
    with torch.cuda.stream(torch.cuda.Stream()):
        spops = Spops(args.library)
        print(f"{device}, PyTorch {torch.__version__}, bf16, ms")
        print("patches   rows heads dim   spops  flash  cudnn gathered | backward: spops flash cudnn")
        for case in CASES + GATHERED:
            row = compare(spops, case, case in GATHERED, args.samples, args.calls)
            around = row.get("gathered_forward_ms")
            print(
                f"{row['patches']:7} {row['rows']:6} {row['heads']:5} {row['dim']:3} "
                f"{row['spops_forward_ms']:7.3f} {row['flash_forward_ms']:6.3f} "
                f"{row['cudnn_forward_ms']:6.3f} {around or float('nan'):8.3f} | "
                f"{row['spops_backward_ms']:15.3f} {row['flash_backward_ms']:5.3f} "
                f"{row['cudnn_backward_ms']:5.3f}",
                flush=True,
            )
            for name, value in row.items():
                if name.endswith("difference") and not value < 0.05:
                    wrong.append(f"{case}: {name} is {value:.3g} of the largest element")
            if args.output:
                row.update(date=str(date.today()), commit=args.commit, device=device)
                row["command"] = "bench/compare_torch.py"
                with open(args.output, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    for line in wrong:
        print(f"WRONG: {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
