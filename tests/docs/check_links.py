#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every link leads somewhere: the file is there, and so is the heading. Names of the interface are names that there are.

    check_links.py SOURCE_DIR         the pages of the repository
    check_links.py SOURCE_DIR HTML    the site that scripts/docs makes: also that addresses carry no folder, that every
                                      page of docs/ is on it, and that its search finds what people look for
"""
import glob
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import names as names_of_pages

# What people type, and a page that must be among the first five places found.
SEARCHES = [("rulebook", "glossary"), ("SubMConv3d", "coming_from"), ("indice_key", "coming_from"),
            ("voxelize", "tool"), ("kernel map", ""), ("flash attention", ""),
            ("spops_bevpool_execute", "")]


def pages_of(root):
    names = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/results/README.md"]
    for pattern in ("docs/**/*.md", "examples/**/*.md"):
        names += [os.path.relpath(path, root) for path in glob.glob(os.path.join(root, pattern), recursive=True)]
    return sorted(names)


def check_repository(root, pages):
    faults, checked = [], 0
    lines_of = {}
    for name in pages_of(root):
        with open(os.path.join(root, name), encoding="utf-8") as text:
            lines_of[name] = text.read().split("\n")
    for name, lines in lines_of.items():
        fenced = False
        for number, line in enumerate(lines, 1):
            if re.match(r"\s*(```|~~~)", line):
                fenced = not fenced
            if fenced or line.startswith("    "):
                continue
            for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", link):
                    continue
                checked += 1
                path, _, anchor = link.partition("#")
                path = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
                if not os.path.exists(os.path.join(root, path)):
                    faults.append(f"{name}:{number}: {link}: there is no {path}")
                elif anchor and path in lines_of:
                    if anchor not in {a for _, _, _, a in pages.headings(lines_of[path])}:
                        faults.append(f"{name}:{number}: {link}: {path} has no such heading")
    listed = pages.read_list()[1]
    for name in lines_of:
        if name != "README.md" and name not in listed:
            faults.append(f"{name} is not in docs/site/pages.txt")
    return checked, faults


def words_of(root, folders):
    found = set()
    for folder in folders:
        for at, _, files in os.walk(os.path.join(root, folder)):
            for name in files:
                if name.endswith((".c", ".h", ".hpp", ".cu", ".cuh", ".def", ".cmake", ".txt", ".in", ".py")):
                    with open(os.path.join(at, name), encoding="utf-8") as text:
                        found.update(re.findall(r"\b(?:spops|SPOPS)_\w+", text.read()))
    return found


def check_names(root, pages):
    """Code spans name what there is: on pages for users in the public headers, the command and the build."""
    public = words_of(root, ["include", "cmake", "tools", "bench"]) | words_of(root, ["examples"])
    with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as text:
        public.update(re.findall(r"\b(?:spops|SPOPS)_\w+", text.read()))
    everything = public | words_of(root, ["src", "kernels", "tests", "support"])
    public.add("SPOPS_CPU_ISA")  # of the environment
    faults, checked = [], 0
    listed = pages.read_list()[1]
    for name in pages_of(root):
        group = listed[name].group if name in listed else "start"
        if group == "history" or name in ("CHANGELOG.md", "docs/extending.md"):  # old names; names of what would be added
            continue
        known = everything if group in ("howto", "inside", "work") else public
        with open(os.path.join(root, name), encoding="utf-8") as text:
            text = text.read()
        for word in re.findall(r"`((?:spops|SPOPS)_\w*[A-Za-z0-9])`", text):
            checked += 1
            if word not in known:
                faults.append(f"{name}: there is no {word}")
    with open(os.path.join(root, "README.md"), encoding="utf-8") as text:
        readme = text.read()
    for header in sorted(os.listdir(os.path.join(root, "include/spops"))):
        if header.endswith((".h", ".hpp")) and f"`spops/{header}`" not in readme:
            faults.append(f"README.md does not name spops/{header}")
    return checked, faults


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links = set(), []

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key in ("id", "name") and value:
                self.ids.add(value)
            elif key in ("href", "src", "data") and value:
                self.links.append((self.getpos()[0], value))


def check_site(root, folder, pages):
    faults, checked, read = [], 0, {}
    for name in sorted(os.listdir(folder)):
        if name.startswith("md_"):
            faults.append(f"{name}: the address carries a folder")
        if name.endswith(".html"):
            read[name] = Links()
            with open(os.path.join(folder, name), encoding="utf-8") as text:
                read[name].feed(text.read())
    for name, page in read.items():
        for line, link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            checked += 1
            path, _, anchor = link.partition("#")
            path, anchor = unquote(path.partition("?")[0]) or name, unquote(anchor)
            if not os.path.exists(os.path.join(folder, path)):
                faults.append(f"{name}:{line}: {link}: there is no {path}")
            elif anchor and path in read and anchor not in read[path].ids:
                faults.append(f"{name}:{line}: {link}: {path} has no such place")
    for page in pages.read_list()[1].values():
        if page.name + ".html" not in read:
            faults.append(f"{page.path} has no page {page.name}.html")
    for words, expected in SEARCHES:
        found = subprocess.run([sys.executable, "-B", os.path.join(root, "docs/site/finish.py"), folder, "--find", words],
                               check=True, capture_output=True, text=True).stdout.split("\n")[:5]
        if not any(line.startswith(expected) and line for line in found):
            faults.append(f"a search for '{words}' does not find {expected or 'anything'} first: {found}")
    return checked, faults


def main():
    root = os.path.abspath(sys.argv[1])
    sys.path.insert(0, os.path.join(root, "docs/site"))
    import pages
    checked, faults = check_repository(root, pages)
    names, wrong = check_names(root, pages)
    faults += wrong
    more, wrong = names_of_pages.check(root)
    names, faults = names + more, faults + wrong
    if len(sys.argv) > 2:
        more, others = check_site(root, sys.argv[2], pages)
        checked, faults = checked + more, faults + others
    print("\n".join(faults[:50]))
    print(f"{checked} links, {names} names, {len(faults)} faults")
    sys.exit(1 if faults or not checked or not names else 0)


main()
