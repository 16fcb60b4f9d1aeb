# SPDX-License-Identifier: Apache-2.0
"""scripts/profile and its judge on counters that were kept: one file for each way a kernel is held
back, in both layouts that Nsight Compute writes, and what is said where there is nothing to judge.

    test_profile.py SOURCE-FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
HERE = ROOT / "tests" / "profile"
PROFILE = ROOT / "scripts" / "profile"
JUDGE = ROOT / "scripts" / "profile_bottleneck.py"


def run(*command, **options):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )


def judged(name):
    result = run(sys.executable, JUDGE, "--json", HERE / name)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


class Judge(unittest.TestCase):
    def expect(self, name, bottleneck, where, value, fragment):
        (d,) = judged(name)
        self.assertEqual((d["bottleneck"], d["where"]), (bottleneck, where), d)
        self.assertAlmostEqual(d["value"], value, places=1)
        self.assertIn(fragment, d["why"])
        return d

    def test_memory(self):
        d = self.expect("memory_l1.csv", "memory", "L1", 70.4, "L1 moves at 70 %")
        self.assertAlmostEqual(d["time_us"], 45.92)  # "45,920" ns
        self.assertEqual(d["grid"], "(4160, 1, 1)")
        self.assertEqual(d["hit_rates"], {"L1": 22.3, "L2": 91.6})
        self.assertEqual(d["shared"], {})  # these counters are not in that file
        self.expect("memory_dram.csv", "memory", "DRAM", 88.4, "DRAM moves at 88 %")

    def test_shared_memory(self):
        """As Nsight Compute wrote it on an H200, with every column it adds by itself."""
        d = self.expect("memory_h200.csv", "memory", "L1", 61.5, "L1 moves at 62 %")
        self.assertAlmostEqual(d["shared"]["stores"]["percent"], 7.4, places=1)
        self.assertAlmostEqual(d["shared"]["stores"]["conflicts"], 47.0, places=1)
        text = run(sys.executable, JUDGE, HERE / "memory_h200.csv").stdout
        self.assertIn("stores 7 % (47 % of it bank conflicts)", text)

    def test_both_layouts_say_the_same(self):
        self.assertEqual(judged("memory_l1.csv"), judged("memory_l1_rows.csv"))

    def test_issue(self):
        self.expect("issue_slots.csv", "issue", "issue slots", 83.7, "busy for 84 %")
        # The slots have room, one pipe has not.
        self.expect("issue_pipe.csv", "issue", "ALU pipe", 78.4, "ALU pipe")

    def test_occupancy(self):
        self.expect("occupancy_grid.csv", "occupancy", "processors", 35.2, "0.31 waves")
        d = self.expect("occupancy_registers.csv", "occupancy", "warps", 23.8, "registers allow")
        self.assertEqual(d["registers"], 128)

    def test_dependency(self):
        self.expect("dependency_loads.csv", "dependency", "long_scoreboard", 31.4, "loads from")
        # Waiting for one's turn is the largest number here, and no dependency.
        d = self.expect("dependency_arithmetic.csv", "dependency", "wait", 6.8, "fixed latency")
        self.assertEqual(list(d["stalls"])[:2], ["not_selected", "wait"])

    def test_several_kernels(self):
        self.assertEqual([d["where"] for d in judged("two_kernels.csv")], ["L1", "DRAM"])

    def test_text_names_the_counters(self):
        result = run(sys.executable, JUDGE, HERE / "memory_l1.csv")
        for fragment in ("bottleneck  memory (L1)", "L2 66 %", "issue slots 62 %", "warps 70 %"):
            self.assertIn(fragment, result.stdout)

    def test_collects_what_it_judges(self):
        collected = run(sys.executable, JUDGE, "--metrics").stdout.strip().split(",")
        self.assertEqual(len(collected), len(set(collected)))
        lines = (HERE / "memory_h200.csv").read_text().splitlines()
        header = next(line for line in lines if line.startswith('"ID"'))
        for metric in collected:
            self.assertIn('"%s"' % metric, header)

    def test_nothing_to_judge(self):
        for name, fragment in (
            ("missing_counter.csv", "counters are missing: lts__throughput"),
            ("no_permission.csv", "ERR_NVGPUCTRPERM"),
            ("no_kernel.csv", "No kernels were profiled"),
            ("absent.csv", "No such file"),
        ):
            result = run(sys.executable, JUDGE, HERE / name)
            self.assertEqual((result.returncode, result.stdout), (1, ""), name)
            self.assertIn(fragment, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


class Script(unittest.TestCase):
    def test_judges_kept_counters(self):
        # From a folder of one's own, with a relative name.
        result = run(PROFILE, "--json", "--from", "issue_slots.csv", cwd=HERE)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["bottleneck"], "issue")

    def test_says_what_is_wrong(self):
        for arguments, fragment in (
            ((), "which kernel?"),
            (("--frob", "k"), "unknown option --frob"),
            (("a", "b"), "found 'a' and 'b'"),
            (("--skip", "x", "k"), "--skip is 'x'"),
            (("--skip",), "--skip needs a value"),
            (("--from", "/nowhere.csv"), "/nowhere.csv cannot be read"),
        ):
            result = run(PROFILE, *arguments)
            self.assertEqual((result.returncode, result.stdout), (1, ""), arguments)
            self.assertIn(fragment, result.stderr)

    def test_runs_the_profiler(self):
        """A stand-in for ncu writes kept counters where it is told to, and notes its arguments."""
        with tempfile.TemporaryDirectory() as folder:
            noted = pathlib.Path(folder, "noted")
            kept = pathlib.Path(folder, "kept.csv")
            ncu = pathlib.Path(folder, "ncu")
            ncu.write_text(
                "#!/bin/sh\n"
                'printf "%%s\\n" "$@" >"%s"\n'
                'while [ "$1" != --log-file ]; do shift; done\n'
                'cat "%s" >"$2"\n' % (noted, HERE / "memory_dram.csv")
            )
            ncu.chmod(0o755)
            environment = dict(os.environ, PATH="%s:%s" % (folder, os.environ["PATH"]))
            command = [PROFILE, "--cold", "--skip", "5", "--save", kept, "--program", "/bin/true"]
            result = run(*command, "k_.*", "--", "gather", "--cols", "16", env=environment)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("bottleneck  memory (DRAM)", result.stdout)
            self.assertEqual(kept.read_bytes(), (HERE / "memory_dram.csv").read_bytes())
            arguments = noted.read_text().splitlines()
            self.assertEqual(arguments[-4:], ["/bin/true", "gather", "--cols", "16"])
            for name, value in (
                ("--kernel-name", "regex:k_.*"),
                ("--launch-skip", "5"),
                ("--cache-control", "all"),
                ("--clock-control", "none"),  # the clocks of the device are not ours to set
            ):
                self.assertEqual(arguments[arguments.index(name) + 1], value)
            # One that fails is reported with what it said.
            ncu.write_text(
                '#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done\n'
                'cat "%s" >"$2"\nexit 1\n' % (HERE / "no_permission.csv")
            )
            result = run(*command, "k_.*", env=environment)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("ERR_NVGPUCTRPERM", result.stderr)
            self.assertIn("Nsight Compute failed", result.stderr)

    def test_says_where_the_profiler_is_missing(self):
        if any(pathlib.Path(p).exists() for p in ("/usr/local/cuda/bin/ncu", "/opt/nvidia")):
            self.skipTest("Nsight Compute is installed")
        with tempfile.TemporaryDirectory() as folder:
            for tool in ("bash", "dirname", "basename", "python3", "ls", "tail"):
                where = run("sh", "-c", "command -v " + tool).stdout.strip()
                pathlib.Path(folder, tool).symlink_to(where)
            result = run(PROFILE, "k", env={"PATH": folder})
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("there is no ncu", result.stderr)


if __name__ == "__main__":
    unittest.main()
