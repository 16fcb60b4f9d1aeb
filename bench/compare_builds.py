#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the suites of two builds of spops_bench in turns, on the same device in one run.

    compare_builds.py OLD NEW --output against_COMMIT.jsonl "conv --modes cold --samples 8" maps ...

An argument after the two programs is a suite with its options. Old and new run in turns, --rounds times
each, and the least of their medians counts: a device that changes its speed between two runs changes a
ratio by more than most changes of code. For each suite the geometric mean of new / old is printed, the
extremes, and the cases above --most, which make the exit status 1.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

KEYS = "case", "dtype", "cols", "channels", "pass", "dataflow", "variant", "mode"


def run(bench, suite, seconds):
    """The lines of a suite, by case."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lines"
        command = [bench, *suite.split(), "--no-baselines", "--output", output]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=seconds)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
    return {" ".join(str(r[k]) for k in KEYS if r.get(k) not in (None, "-")): r for r in lines}


def compare(args, suite):
    """Cases that both have: name, a line, medians of old and new in microseconds."""
    least = {args.old: {}, args.new: {}}
    lines = {}
    for _ in range(args.rounds):
        for bench in args.old, args.new:
            for name, r in run(bench, suite, args.seconds).items():
                least[bench][name] = min(least[bench].get(name, math.inf), r["median_us"])
                if bench == args.new:
                    lines[name] = r
    return [(name, r, least[args.old][name], least[args.new][name]) for name, r in lines.items()
            if name in least[args.old]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="path of the older spops_bench")
    parser.add_argument("new", help="path of the newer spops_bench")
    parser.add_argument("suites", nargs="+", help="a suite with its options, in quotes")
    parser.add_argument("--rounds", type=int, default=2, help="of each (default 2)")
    parser.add_argument("--seconds", type=float, default=200, help="limit of one run (default 200)")
    parser.add_argument("--most", type=float, default=1.03, help="ratio allowed (default 1.03)")
    parser.add_argument("--old-commit", default="", help="noted with each case")
    parser.add_argument("--output", help="JSON lines, one a case, are added to this file")
    args = parser.parse_args()
    if args.old == args.new:
        parser.error("OLD and NEW are one file")
    date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    above = 0
    for suite in args.suites:
        cases = compare(args, suite)
        if not cases:
            sys.exit(f"{suite}: the two have no case in common")
        ratios = sorted((new / old, name, old, new) for name, _, old, new in cases)
        mean = math.exp(sum(math.log(r[0]) for r in ratios) / len(ratios))
        print(f"{suite}: {len(ratios)} cases, new / old {mean:.3f}, {ratios[0][0]:.3f} to {ratios[-1][0]:.3f}",
              flush=True)
        for ratio, name, old, new in ratios:
            if ratio > args.most:
                above += 1
                print(f"    {ratio:.3f}  {old:.1f} to {new:.1f} us  {name}")
        if args.output:
            with open(args.output, "a") as file:
                for name, r, old, new in cases:
                    line = dict(date=date, device=r["device"], old_commit=args.old_commit, commit=r["commit"],
                                command=f"spops_bench {suite} --no-baselines", case=name, old_us=old,
                                new_us=new, ratio=round(new / old, 4))
                    file.write(json.dumps(line) + "\n")
    sys.exit(above > 0)


if __name__ == "__main__":
    main()
