#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C code of the pages is what it says: snippets compile and run, and the program in README.md is the example that
the tests run.

    check_code.py SOURCE_DIR CC LIBRARY WORK_DIR
"""
import os
import re
import subprocess
import sys

PAGES = ["docs/tasks.md", "docs/tiles.md", "docs/coming-from.md"]  # every block of these is the body of a function
PRELUDE = "tests/docs/snippets.h"


def blocks(path):
    """(number of the first line, lines) of each block of C"""
    with open(path, encoding="utf-8") as text:
        lines = text.read().split("\n")
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "```c":
            begin = number + 1
        elif line == "```" and begin is not None:
            yield begin, lines[begin - 1:number - 1]
            begin = None


def check_program(root):
    found = list(blocks(os.path.join(root, "README.md")))
    with open(os.path.join(root, "examples/bevpool_minimal.c"), encoding="utf-8") as text:
        example = text.read().split("\n")[3:]  # the first three are about the file itself
    programs = [lines for _, lines in found if any("int main" in line for line in lines)]
    if len(programs) != 1 or programs[0] != example[:-1]:
        sys.exit("the program in README.md is not examples/bevpool_minimal.c")


def main():
    root, compiler, library, work = sys.argv[1:]
    check_program(root)
    os.makedirs(work, exist_ok=True)
    source, calls = [f'#include "{os.path.join(root, PRELUDE)}"'], []
    for page in PAGES:
        for line, body in blocks(os.path.join(root, page)):
            name = "snippet_" + re.sub(r"\W", "_", f"{page}_{line}")
            path = os.path.join(root, page)
            source += [f"static int {name}(void)", "{", f'#line {line} "{path}"', *body, "return 0;", "}"]
            calls.append(name)
    source += ["int main(void)", "{", "if (prepare() != 0) return 1;"]
    source += [f'if ({name}() != 0) return fprintf(stderr, "{name} failed\\n"), 1;' for name in calls]
    source += [f'printf("%d snippets ran\\n", {len(calls)});', "return 0;", "}"]
    program = os.path.join(work, "snippets")
    with open(program + ".c", "w", encoding="utf-8") as out:
        out.write("\n".join(source) + "\n")
    folder, name = os.path.split(os.path.abspath(library))
    subprocess.run([compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-Wno-unused-function",
                    "-Wno-unused-but-set-variable", "-I", os.path.join(root, "include"), program + ".c", "-o", program,
                    os.path.join(folder, name), f"-Wl,-rpath,{folder}"], check=True)
    subprocess.run([program], check=True)
    if len(calls) < len(PAGES):
        sys.exit("the pages have hardly any code")


main()
