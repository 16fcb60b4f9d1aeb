#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the suites of the benchmark on two cores of which another process keeps one busy.

Each suite runs on two cores with one thread and with all, beside `--neighbour`: a call whose threads
wait for each other then takes a multiple of one thread's time. With --before, another spops_bench runs
on both cores, idle, beside this one. For each case the medians are printed and their ratios; the exit
status is 1 if one with the neighbour is more than --most.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SUITES = [
    ["bev", "--quick"],
    ["segreduce", "--quick", "--shapes", "uniform,huge", "--passes", "forward"],
    ["maps", "--quick"],
]


def run(bench, suite, options):
    """Medians by case, microseconds."""
    medians = {}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lines"
        command = [bench, *suite, "--backend", "cpu", "--modes", "hot", "--no-baselines", "--json",
                   "--output", output, *options]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        for line in output.read_text().splitlines():
            r = json.loads(line)
            name = "%s %s %s%s" % (r["suite"], r["case"],
                                   "" if r["variant"] == "spops" else r["variant"] + " ",
                                   "" if r["dtype"] == "-" else r["dtype"])
            medians[name.strip()] = r["median_us"]
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="path of spops_bench")
    parser.add_argument("--before", help="another spops_bench, for idle cores")
    parser.add_argument("--samples", default="9", help="a measurement (default 9)")
    parser.add_argument("--rounds", type=int, default=1, help="of everything (default 1)")
    parser.add_argument("--most", type=float, default=1.3, help="ratio allowed (default 1.3)")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-2:])
    samples = ["--samples", args.samples]
    kinds = {
        "one": (args.bench, ["--neighbour", "--threads", "1"]),
        "two": (args.bench, ["--neighbour", "--threads", "2"]),
        "idle": (args.bench, ["--threads", "2"]),
        "before": (args.before, ["--threads", "2"]),
    }
    missed = num_cases = 0
    print("us: one thread and two beside a busy neighbour, their ratio; two on idle cores%s"
          % (", before, their ratio" if args.before else ""))
    for suite in SUITES:
        found = {kind: {} for kind in kinds}  # medians by case
        for _ in range(args.rounds):  # in turns, so that all meet what else the machine does
            for kind, (bench, options) in kinds.items():
                medians = run(bench, suite, options + samples) if bench is not None else {}
                for name, median in medians.items():
                    found[kind].setdefault(name, []).append(median)
        for name in found["one"]:
            own = {kind: statistics.median(cases[name])
                   for kind, cases in found.items() if name in cases}
            ratio = own["two"] / own["one"]
            missed += ratio > args.most
            num_cases += 1
            line = "%8.0f %8.0f  %4.2f  %8.0f" % (own["one"], own["two"], ratio, own["idle"])
            if args.before:
                line += "%8.0f  %4.2f" % (own["before"], own["idle"] / own["before"]) \
                    if "before" in own else " " * 14
            print("%s  %s" % (line, name), flush=True)
    print("%d of %d cases take more than %g times one thread's time"
          % (missed, num_cases, args.most))
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
