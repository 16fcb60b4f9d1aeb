#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weak and strong scaling of a training step of MinkUNet over ranks.

    scaling.py RANKS --backend cuda --nccl --graph --output ranks.jsonl
    scaling.py --table ranks.jsonl

RANKS is the example's program (examples/ranks.c). Weak scaling: as many voxels, and chunks, for each rank. Strong
scaling: one set in the same chunks. Lines of a run are added to the output as they come, so that a run that fails
leaves those before; what fails makes the exit status 1. Tables are in Markdown: steps with weak efficiency (a
step of one rank over a step of all) and strong speed-up, then what ranks exchange beside the link's rate.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def commit():
    if os.environ.get("SPOPS_COMMIT"):
        return os.environ["SPOPS_COMMIT"]
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def runs_of(args):
    """(scaling, ranks, voxels, chunks); one rank of weak scaling first."""
    ranks = sorted({int(r) for r in args.ranks.split(",")})
    if args.weak > 0:
        yield from (("weak", r, args.weak * r, args.chunks * r) for r in ranks)
    if args.strong > 0:
        yield from (("strong", r, args.strong, args.chunks * ranks[-1]) for r in ranks)


def run(args, ranks, voxels, chunks):
    """The lines of a run; [] where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lines"
        words = {
            "--time": ranks, "--voxels": int(voxels), "--chunks": chunks, "--backend": args.backend, "--dtype": args.dtype, "--width": args.width,
            "--levels": args.levels, "--cloud": args.cloud, "--launches": args.launches, "--timeout": args.timeout, "--nccl": int(args.nccl),
            "--graph": int(args.graph),
        }  # fmt: skip
        command = [str(args.paths[0]), *(f"{w}" for pair in words.items() for w in pair), *args.options.split()]
        began = time.monotonic()
        try:
            done = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, timeout=args.seconds, check=False)
        except subprocess.TimeoutExpired:
            print(f"{' '.join(command)}: not done after {args.seconds} s", file=sys.stderr)
            return []
        print(f"{done.stdout}{done.stderr}  {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode != 0 or not output.exists():
            print(f"{' '.join(command)}: ends with {done.returncode}", file=sys.stderr)
            return []
        named = " ".join([Path(command[0]).name, *command[1:]])
        return [{**json.loads(line), "command": named} for line in output.read_text().splitlines()]


def measure(args):
    noted = dict(date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), commit=commit())
    failed, lines = False, []
    for scaling, ranks, voxels, chunks in runs_of(args):
        found = [{**noted, "scaling": scaling, **line} for line in run(args, ranks, voxels, chunks)]
        failed |= not found
        lines += found
        if args.output:
            with open(args.output, "a", encoding="utf-8") as out:
                out.writelines(json.dumps(line) + "\n" for line in found)
    print("\n".join(tables(lines)))
    return failed


# ---- Tables -------------------------------------------------------------------------------------


def by_run(lines):
    """(scaling, ranks) -> case -> line; of several runs the last."""
    runs = {}
    for line in lines:
        runs.setdefault((line["scaling"], line["ranks"]), {})[line["case"]] = line
    return runs


def gain_of(one, many):
    """How many times as fast a step of many ranks is, captured where both are."""
    case = "step, captured" if "step, captured" in one and "step, captured" in many else "step"
    return one[case]["median_us"] / many[case]["median_us"]


def scaling_rows(runs):
    yield "| scaling | ranks | voxels | step, ms | captured | forward | backward | made in, s | GB: rows, plans, gradients, used | |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (scaling, ranks), cases in sorted(runs.items(), key=lambda r: (r[0][0] != "weak", r[0][1])):
        one, made, says = runs.get((scaling, 1)), cases["made"], ""
        if one is not None and ranks > 1:
            gain = gain_of(one, cases)
            says = f"efficiency {gain:.1%}" if scaling == "weak" else f"{gain:.2f} times as fast"
        ms = [f"{cases[c]['median_us'] / 1000:.2f}" if c in cases else "" for c in ("step", "step, captured", "forward", "backward")]
        seconds = max(sum(made[k][r] for k in ("partition_ms", "halos_ms", "plans_ms")) for r in range(ranks)) / 1000
        memory = [1e-9 * max(made[k]) for k in ("row_bytes", "plan_bytes", "gradient_bytes")] + [max(made["used_gb"])]
        yield f"| {scaling} | {ranks} | {cases['step']['voxels']:,} | {' | '.join(ms)} | {seconds:.2f} | {', '.join(f'{m:.2f}' for m in memory)} | {says} |"


def rows_of_exchanges(cases):
    yield "| part | exchanges | MB that a rank sends | ms | GB/s |"
    yield "|---|---|---|---|---|"
    for case, line in cases.items():
        if "median_us" not in line or not case.startswith(("halos", "sums", "link")):
            continue
        sent = max(line["sent_bytes"])
        rate = f"{1e-3 * sent / line['median_us']:.2f}" if sent else ""
        yield f"| {case} | {line['exchanges'] or ''} | {1e-6 * sent:.3f} | {line['median_us'] / 1000:.3f} | {rate} |"


def rows_of_ranks(cases):
    yield "| level | rank | owned rows | of them beside ghosts | ghosts | rows sent |"
    yield "|---|---|---|---|---|---|"
    for case, line in cases.items():
        if case.startswith("rows of level"):
            for r in range(line["ranks"]):
                yield f"| {case.split()[-1]} | {r} | {line['owned'][r]:,} | {line['boundary'][r]:,} | {line['ghosts'][r]:,} | {line['sent'][r]:,} |"


def rows_of_parts(cases):
    yield "| part | ms, all ranks | each rank's own |"
    yield "|---|---|---|"
    for case, line in cases.items():
        if "median_us" in line and not case.startswith(("halos of", "link")):
            yield f"| {case} | {line['median_us'] / 1000:.2f} | {', '.join(f'{us / 1000:.2f}' for us in line['own_us'])} |"


def tables(lines):
    runs = by_run(lines)
    if not runs:
        return
    any_line = next(iter(next(iter(runs.values())).values()))
    yield f"{any_line['device']}, {any_line['dtype']}, {any_line['cloud']}, commit {any_line['commit']}:\n"
    yield from scaling_rows(runs)
    for (scaling, ranks), cases in runs.items():
        if ranks > 1:
            yield f"\n{scaling} scaling, {ranks} ranks over {cases['step']['by']}, {cases['step']['voxels']:,} voxels:\n"
            for rows in (rows_of_ranks, rows_of_parts, rows_of_exchanges):
                yield from rows(cases)
                yield ""


def table(paths):
    lines = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    print("\n".join(tables([line for line in lines if line.get("suite") == "ranks"])))


def main():
    m = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter)
    m.add_argument("paths", type=Path, nargs="+", help="examples' ranks; with --table files of lines")
    m.add_argument("--table", action="store_true", help="run nothing, print tables of files")
    m.add_argument("--ranks", default="1,2", help="numbers of ranks, separated by commas (default 1,2)")
    m.add_argument("--weak", type=float, default=2e6, help="voxels of a rank; 0: none (default 2e6)")
    m.add_argument("--strong", type=float, default=8e6, help="voxels of all; 0: none (default 8e6)")
    m.add_argument("--chunks", type=int, default=8, help="of each rank (default 8)")
    m.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    m.add_argument("--nccl", action="store_true", help="a GPU for each rank")
    m.add_argument("--graph", action="store_true", help="a step captured too, where ranks are over NCCL")
    m.add_argument("--dtype", default="f16", choices=("f16", "f32"))
    m.add_argument("--cloud", default="gyroid", choices=("gyroid", "ground"))
    m.add_argument("--width", type=float, default=1.0)
    m.add_argument("--levels", type=int, default=5)
    m.add_argument("--launches", type=int, default=5)
    m.add_argument("--timeout", type=int, default=20, help="seconds that a rank waits for others (default 20)")
    m.add_argument("--seconds", type=float, default=600, help="limit of one run (default 600)")
    m.add_argument("--options", default="", help="more options of the program, in one word")
    m.add_argument("--output", help="JSON lines are added to this file")
    args = m.parse_args()
    return table(args.paths) if args.table else measure(args)


if __name__ == "__main__":
    sys.exit(main())
