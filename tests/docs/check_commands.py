#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command that the pages show is tried, on a machine that needs no GPU.

    check_commands.py SOURCE_DIR SPOPS WORK_DIR        SPOPS: the command that was built

Commands are the lines of blocks of sh, indented lines and code spans that begin with a program of ours. How each is
tried is the first rule of RULES that fits it; one that no rule fits is an error. What needs a GPU must be refused
in a line that says so. Installing and linking as README.md says are the test package_readme.
"""
import os
import re
import shutil
import subprocess
import sys

OURS = r"(spops|spops_bench|minkunet|centerpoint|spconv_benchmark|decoder|dit_block|segment_train|memory_of_network|ranks|scripts/[\w-]+|tests/[\w/.]+\.sh|python3 bench/\w+\.py)"
root, spops, work = (os.path.abspath(path) for path in sys.argv[1:])
sys.path.insert(0, os.path.join(root, "docs/site"))
import pages  # noqa: E402

has_gpu = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
helps = {}


def commands():
    """(page, line, command)"""
    for page in ["README.md", *pages.read_list()[1]]:
        if page.startswith("docs/history/"):
            continue
        with open(os.path.join(root, page), encoding="utf-8") as text:
            lines = text.read().split("\n")
        fence = None
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("```"):
                fence = line.strip()[3:] if fence is None else None
            elif fence == "sh":
                if line.strip():
                    yield page, number, line.strip()
            elif fence is not None:
                continue
            elif re.match(r"    (\$ )?" + OURS + r"( |$)", line) and not line.startswith("    spops sparseconv"):
                command = line.strip().removeprefix("$ ")
                while number < len(lines) and lines[number].startswith("       "):  # its continuation
                    command += " " + lines[number].strip()
                    number += 1
                yield page, number, command
            else:
                for span in re.findall(r"`([^`]+)`", line):
                    if re.match(OURS + r"( |$)", span) and " " in span + (" " if "/" in span else ""):
                        yield page, number, span


def run(*words, **more):
    return subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=120, check=False, **more)


def help_of(*words):
    if words not in helps:
        told = run(*words, "--help")
        helps[words] = told.stdout if told.returncode == 0 else None
    return helps[words]


def options_known(command, told):
    if told is None:
        return "its --help fails"
    unknown = [name for name in re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", command) if name not in told]
    return f"--help does not know {' '.join(unknown)}" if unknown else None


def succeeds(*words):
    done = run(*words)
    if done.returncode != 0:
        return f"ends with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"
    return None


def refused(words, line, **more):
    """Fails, in a line that says why."""
    done = run(*words, **more)
    if done.returncode == 0:
        return "succeeds, where it must be refused"
    said = " ".join((done.stderr + done.stdout).split())
    return None if re.search(line, said) else f"is refused without a clear line: {said[-300:]}"


def try_bench(command):
    suite = command.split()[2:3]
    if suite == ["--help"]:
        return succeeds(spops, "bench", *suite)
    if "bench      (not in this build)" in help_of(spops):
        return refused([spops, "bench", *suite], "this build is without bench")
    if suite == ["all"] or not suite or suite[0].isupper() or suite[0].startswith("-"):
        suite = ["bev"]
    return options_known(command, help_of(spops, "bench", suite[0]))


def try_spops(command):
    words = command.split()
    if len(words) == 2 and words[1] not in ("info", "help"):
        return options_known("", help_of(spops, words[1]))
    if "[" in command or any(word.isupper() for word in words[2:]):
        if words[1] == "help":
            return succeeds(spops, *words[1:2])
        return options_known(re.sub(r"\[|\]", " ", command), help_of(spops, words[1]))
    if words[1] == "tune":
        words += ["--quick", "--voxels", "2000", "--samples", "3", "--width", "0.25", "--passes", "forward"]
    if words[1] in ("demo", "tune", "scan") and "--out" not in words:
        words += ["--out", os.path.join(work, "out_" + words[1])]
    if words[1] in ("demo", "tune", "plan", "voxelize"):
        words += ["--backend", "cpu"]
    if words[1] == "scan":
        words += ["--columns", "90"]
    return succeeds(spops, *words[1:])


def try_script(command):
    path = os.path.join(root, command.split()[0])
    if not os.access(path, os.X_OK):
        return f"there is no program {path}"
    if command.startswith("scripts/profile"):
        known = options_known(command.partition(" -- ")[0], help_of(path))
        if known or re.search(r"\[|FILE", command) or shutil.which("ncu"):
            return known
        return refused([path, *command.split()[1:]], "there is no ncu") if " " in command else None
    if command.split()[0] == "scripts/gpu-test" or "--gpu" in command:
        return None if has_gpu else refused([path, *command.split()[1:]], "no GPU here")
    with open(path, encoding="utf-8") as text:
        if "python3" in text.readline():
            told = run(sys.executable, "-B", path, "--help")
            return options_known(command, told.stdout if told.returncode == 0 else None)
    return succeeds("bash", "-n", path)  # what it does takes minutes: CI runs test and docs


def try_python(command):
    words = command.split()
    program = os.path.join(root, words[1])
    if "plot_others.py --table" in command or command == "python3 bench/scaling_model.py":
        return succeeds(sys.executable, "-B", program, *words[2:])
    told = run(sys.executable, "-B", program, "--help")
    if "ModuleNotFoundError" in told.stderr:
        return None if re.search(r"No module named '(numpy|scipy|torch|matplotlib)", told.stderr) else told.stderr
    return options_known(command, told.stdout if told.returncode == 0 else None)


def try_configure(command):
    words = command.split()
    folder = os.path.join(work, words[words.index("-B") + 1])
    shutil.rmtree(folder, ignore_errors=True)
    words[words.index("-B") + 1] = folder
    words = [word.strip('"') for word in words]
    where = {**os.environ, "CUDACXX": "/none/nvcc"}
    return refused([*words, "-S", root], "no CUDA compiler was found", env=where)


def example_is_there(command):
    name = command.split()[0]
    found = [path for path in pages.example_files() if os.path.basename(path) == name + ".c"]
    return None if found else f"there is no example {name}"


RULES = [
    (r"spops bench\b|spops_bench\b", lambda c: try_bench(c.replace("spops_bench", "spops bench"))),
    (r"spops \w", try_spops),
    (r"scripts/", try_script),
    (r"python3 ", try_python),
    (r"tests/", try_script),
    (r"minkunet|centerpoint|spconv_benchmark|decoder|dit_block|segment_train|memory_of_network|ranks", example_is_there),
    (r"mpirun -n \d+ sh -c '", lambda c: example_is_there(c.split("'")[1])),  # no MPI is needed to build or test
    (r"cmake -B \S+ -DSPOPS_CUDA=ON", try_configure),
    (r"build-bench/tools/spops bench", lambda c: try_bench(c.removeprefix("build-bench/tools/"))),
    (r"pip install \./python$|python -m spops\.demo$|python -m spops\.tiles |python python/bench/|python train_segment\w*\.py ", lambda c: None),  # scripts/wheel, scripts/test python
    # As package_readme and package_examples run them.
    (r"cmake (-B build |--build |--install |-S examples )|ctest --test-dir build-examples|export PKG_CONFIG_PATH=|cc |\./engine",
     lambda c: None),
]


def main():
    os.makedirs(work, exist_ok=True)
    for name in ("cloud.npy", "FILE.npy"):
        made = run(spops, "scan", "--out", work, "--seed", "7", "--beams", "16", "--columns", "200")
        if made.returncode != 0:
            sys.exit(f"spops scan: {made.stderr}")
        shutil.copy(os.path.join(work, "scan_000007.npy"), os.path.join(work, name))
    tried, faults = {}, 0
    for page, number, command in commands():
        command = re.sub(r"\s+# .*", "", command).strip()
        if command not in tried:
            rule = next((how for what, how in RULES if re.match(what, command)), None)
            tried[command] = rule(command) if rule else "no rule of check_commands.py fits it"
        if tried[command]:
            faults += 1
            print(f"{page}:{number}: {command}: {tried[command]}")
    if not has_gpu:
        for words in (["demo", "--out", work], ["bench", "bev", "--maps", "a"], ["tune"], ["plan"]):
            fault = refused([spops, *words, "--backend", "cuda"], "CUDA|no NVIDIA driver|this build is without bench")
            if fault:
                faults += 1
                print(f"spops {' '.join(words)} --backend cuda: {fault}")
    print(f"{len(tried)} commands, {faults} faults")
    sys.exit(1 if faults or len(tried) < 40 else 0)


main()
