#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Name what holds a kernel back, from counters that Nsight Compute wrote as CSV.

    profile_bottleneck.py [--json] FILE    judge every kernel in FILE (- for standard input)
    profile_bottleneck.py --metrics        the counters to collect, as ncu's --metrics takes them

Four answers, asked in this order (the rules are in `judge`):

    memory      a level of memory is near its rate: fewer bytes, or closer ones
    issue       the schedulers or an arithmetic pipe are near theirs: fewer instructions
    occupancy   too few warps, or processors without work: smaller blocks of work, more even ones
    dependency  warps are there and wait for results: more independent work in each
"""
import argparse
import csv
import json
import sys

# A unit that is busy for more than this share of its peak is taken for the limit. Nsight Compute's
# own guide speaks of a latency problem where nothing is above it.
NEAR_PEAK = 60.0
FEW_WARPS = 50.0  # percent of the warps a processor can hold
IDLE_PROCESSORS = 70.0  # percent of the kernel's time that a processor works, mean of all

MEMORY = {  # name: counter, percent of peak
    "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
}
# Shared memory is a part of L1: turns that its requests take there, as a share of the kernel's time,
# and how many of them wait for another word of the same bank.
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_%s.sum"
SHARED_SHARE = SHARED + ".pct_of_peak_sustained_elapsed"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_%s.sum"
SHARED_REQUESTS = {"loads": "ld", "stores": "st"}
ISSUE = {
    "issue slots": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "ALU pipe": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "FMA pipe": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
}
DURATION = "gpu__time_duration.sum"
WARPS_ACTIVE = "sm__warps_active.avg.pct_of_peak_sustained_active"
WARPS_POSSIBLE = "sm__maximum_warps_per_active_cycle_pct"
ELIGIBLE = "smsp__warps_eligible.avg.per_cycle_active"
CYCLES_ACTIVE = "sm__cycles_active.avg"
CYCLES_ELAPSED = "sm__cycles_elapsed.max"
WAVES = "launch__waves_per_multiprocessor"
REGISTERS = "launch__registers_per_thread"
BLOCK_LIMITS = {  # blocks a processor can hold, by what runs out first
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}
HIT_RATES = {"L1": "l1tex__t_sector_hit_rate.pct", "L2": "lts__t_sector_hit_rate.pct"}
STALL = "smsp__average_warps_issue_stalled_%s_per_issue_active.ratio"
STALLS = {  # cycles a warp waits between two instructions, by reason
    "long_scoreboard": "loads from global or local memory",
    "short_scoreboard": "shared memory or special functions",
    "wait": "the fixed latency of the instruction before",
    "lg_throttle": "room in the queue for global memory",
    "mio_throttle": "room in the queue for shared memory",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "barrier": "other warps at a barrier",
    "branch_resolving": "the target of a branch",
    "no_instruction": "instructions that are not in the cache",
    "imc_miss": "constants that are not in the cache",
    "drain": "stores at the end of a thread",
    "not_selected": "their turn (enough warps are ready)",
}


def all_metrics():
    own = [DURATION, WARPS_ACTIVE, WARPS_POSSIBLE, ELIGIBLE, CYCLES_ACTIVE, CYCLES_ELAPSED, WAVES]
    tables = [MEMORY, ISSUE, BLOCK_LIMITS, HIT_RATES]
    return (
        own
        + [REGISTERS]
        + [metric for table in tables for metric in table.values()]
        + [m % op for m in (SHARED, SHARED_SHARE, CONFLICTS) for op in SHARED_REQUESTS.values()]
        + [STALL % reason for reason in STALLS]
    )


# ---- Reading ------------------------------------------------------------------------------------


def number(text):
    """1,234.5 -> 1234.5; None for what is no number (n/a, a unit)."""
    try:
        return float(text.replace(",", ""))
    except (AttributeError, ValueError):
        return None


def read_kernels(lines):
    """A dict for each kernel: name, grid, block, and its counters under "metrics".

    ncu writes either a row per counter ("Metric Name", "Metric Value") or, with --page raw, a row
    per kernel with a column per counter and a row of units below the header. Lines before the
    header are its messages.
    """
    lines = list(lines)
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = [line.strip() for line in lines if line.startswith("==")]
        raise ValueError(said[-1] if said else "there are no counters in it")
    kernels = {}
    for row in csv.DictReader(lines[start:]):
        if number(row.get("ID")) is None:  # the row of units, or a message
            continue
        kernel = kernels.setdefault(
            row["ID"],
            {
                "name": row["Kernel Name"],
                "grid": row.get("Grid Size") or "?",
                "block": row.get("Block Size") or "?",
                "metrics": {},
            },
        )
        named = [(row["Metric Name"], row["Metric Value"])] if "Metric Name" in row else row.items()
        for name, value in named:
            if name and number(value) is not None:
                kernel["metrics"][name] = number(value)
    if not kernels:
        raise ValueError("no kernel was measured: does the regular expression match one?")
    return list(kernels.values())


# ---- Judging ------------------------------------------------------------------------------------


def highest(table, metrics):
    """(name, value) of the largest counter of a table; what is missing counts as 0."""
    return max(((n, metrics.get(m, 0.0)) for n, m in table.items()), key=lambda pair: pair[1])


def processors_active(metrics):
    elapsed = metrics.get(CYCLES_ELAPSED, 0.0)
    return 100.0 * metrics.get(CYCLES_ACTIVE, 0.0) / elapsed if elapsed > 0 else 100.0


def why_few_warps(metrics):
    possible = metrics.get(WARPS_POSSIBLE, 100.0)
    if metrics.get(WAVES, 1.0) < 1.0:
        return "the grid does not fill the device (%.2f waves)" % metrics[WAVES]
    limits = {n: metrics[m] for n, m in BLOCK_LIMITS.items() if metrics.get(m, 0.0) > 0.0}
    if possible < FEW_WARPS and limits:
        return "%s allow only %.0f %% of the warps" % (min(limits, key=limits.get), possible)
    return "blocks end at different times, or are few (%.0f %% would fit)" % possible


def judge(metrics):
    """(bottleneck, where, percent or cycles, why)"""
    missing = [m for m in (*MEMORY.values(), *ISSUE.values(), WARPS_ACTIVE) if m not in metrics]
    if missing:
        raise ValueError("counters are missing: " + ", ".join(missing))
    level, memory = highest(MEMORY, metrics)
    unit, issue = highest(ISSUE, metrics)
    if memory >= NEAR_PEAK and memory >= issue:
        return "memory", level, memory, "%s moves at %.0f %% of its rate" % (level, memory)
    if issue >= NEAR_PEAK:
        return "issue", unit, issue, "%s busy for %.0f %% of the time" % (unit, issue)
    active, busy = metrics[WARPS_ACTIVE], processors_active(metrics)
    if busy < IDLE_PROCESSORS:
        why = "processors work for %.0f %% of the time: %s" % (busy, why_few_warps(metrics))
        return "occupancy", "processors", busy, why
    if active < FEW_WARPS:
        why = "%.0f %% of the warps are there: %s" % (active, why_few_warps(metrics))
        return "occupancy", "warps", active, why
    stalls = {r: metrics.get(STALL % r, 0.0) for r in STALLS if r != "not_selected"}
    reason = max(stalls, key=stalls.get)
    why = "%.1f cycles an instruction wait for %s" % (stalls[reason], STALLS[reason])
    return "dependency", reason, stalls[reason], why


# ---- Telling ------------------------------------------------------------------------------------


def shared_requests(metrics):
    """Per kind of request, percent of L1's rate while processors work, and of that bank conflicts."""
    found = {}
    for name, op in SHARED_REQUESTS.items():
        if SHARED_SHARE % op in metrics and metrics.get(SHARED % op, 0.0) > 0.0:
            found[name] = {
                "percent": 100.0 * metrics[SHARED_SHARE % op] / processors_active(metrics),
                "conflicts": 100.0 * metrics.get(CONFLICTS % op, 0.0) / metrics[SHARED % op],
            }
    return found


def describe(kernel):
    metrics = kernel["metrics"]
    kind, where, value, why = judge(metrics)
    stalls = {r: metrics[STALL % r] for r in STALLS if STALL % r in metrics}
    return {
        "kernel": kernel["name"],
        "grid": kernel["grid"],
        "block": kernel["block"],
        "time_us": metrics.get(DURATION, 0.0) / 1e3,
        "bottleneck": kind,
        "where": where,
        "value": value,
        "why": why,
        "memory": {n: metrics[m] for n, m in MEMORY.items()},
        "shared": shared_requests(metrics),
        "issue": {n: metrics[m] for n, m in ISSUE.items()},
        "hit_rates": {n: metrics[m] for n, m in HIT_RATES.items() if m in metrics},
        "warps_active": metrics[WARPS_ACTIVE],
        "warps_possible": metrics.get(WARPS_POSSIBLE),
        "warps_eligible": metrics.get(ELIGIBLE),
        "processors_active": processors_active(metrics),
        "waves": metrics.get(WAVES),
        "registers": metrics.get(REGISTERS),
        "stalls": dict(sorted(stalls.items(), key=lambda pair: -pair[1])),
    }


def percents(table):
    return ", ".join("%s %.0f %%" % pair for pair in table.items())


def optional(text, value):
    return "" if value is None else text % value


def print_text(d):
    print("%s, grid %s, block %s, %.2f us" % (d["kernel"], d["grid"], d["block"], d["time_us"]))
    print("  bottleneck  %s (%s): %s" % (d["bottleneck"], d["where"], d["why"]))
    print("  memory      %s of peak" % percents(d["memory"]), end="")
    print("; hits %s" % percents(d["hit_rates"]) if d["hit_rates"] else "")
    if d["shared"]:
        parts = [
            "%s %.0f %% (%.0f %% of it bank conflicts)" % (name, s["percent"], s["conflicts"])
            for name, s in d["shared"].items()
        ]
        print("  shared      of L1's peak: " + ", ".join(parts))
    print("  issue       %s" % percents(d["issue"]), end="")
    print(optional("; %.2f warps ready a cycle", d["warps_eligible"]))
    print("  occupancy   warps %.0f %%" % d["warps_active"], end="")
    print(optional(" of %.0f %% possible", d["warps_possible"]), end="")
    print(", processors %.0f %% of the time" % d["processors_active"], end="")
    print(optional(", %.2f waves", d["waves"]) + optional(", %.0f registers", d["registers"]))
    worst = list(d["stalls"].items())[:3]
    if worst:
        print("  stalls      ", end="")
        print("; ".join("%.1f cycles for %s" % (cycles, STALLS[r]) for r, cycles in worst))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="CSV that ncu wrote; - for standard input")
    parser.add_argument("--metrics", action="store_true", help="print the counters to collect")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    if args.metrics:
        print(",".join(all_metrics()))
        return 0
    if args.file is None:
        parser.error("a FILE is missing")
    try:
        if args.file == "-":
            kernels = read_kernels(sys.stdin)
        else:
            with open(args.file, encoding="utf-8", newline="") as lines:
                kernels = read_kernels(lines)
        described = [describe(kernel) for kernel in kernels]
    except (OSError, ValueError) as error:
        print("profile: %s: %s" % (args.file, error), file=sys.stderr)
        return 1
    for d in described:
        if args.json:
            print(json.dumps(d))
        else:
            print_text(d)
    return 0


if __name__ == "__main__":
    sys.exit(main())
