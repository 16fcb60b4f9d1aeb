# SPDX-License-Identifier: Apache-2.0
"""What the scripts beside this share: the list of pages, ids of headings, names of the interface."""
import functools
import os
import re

SITE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(SITE))
EXAMPLES = (".c", ".h", ".cu")


def slug(heading):
    """The anchor that a Git host gives a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def headings(lines):
    """(number of the line, level, text, anchor) of each heading that stands outside of code."""
    fenced, seen = False, {}
    for number, line in enumerate(lines):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        found = None if fenced else re.match(r"(#{1,6}) +(.*?)\s*#*$", line)
        if found:
            anchor = slug(found.group(2))
            count = seen[anchor] = seen.get(anchor, -1) + 1
            yield number, len(found.group(1)), found.group(2), f"{anchor}-{count}" if count else anchor


class Page:
    def __init__(self, group, path, name, about):
        self.group, self.path, self.name, self.about = group, path, name, about


@functools.lru_cache(None)
def read_list():
    """The groups, as (name, title), and the pages, by path."""
    groups, pages = [], {}
    with open(os.path.join(SITE, "pages.txt"), encoding="utf-8") as lines:
        for line in lines:
            line = line.strip()
            if line.startswith("group "):
                _, name, title = line.split(" ", 2)
                groups.append((name, title))
            elif line and not line.startswith("#"):
                path, name, about = (part.strip() for part in line.split("|"))
                pages[path] = Page(groups[-1][0], path, name, about)
    return groups, pages


@functools.lru_cache(None)
def public_names():
    """Functions, types, enumerators and macros of the public headers."""
    names, folder = set(functions()), os.path.join(ROOT, "include", "spops")
    for name in os.listdir(folder):
        if name.endswith(".h"):
            with open(os.path.join(folder, name), encoding="utf-8") as text:
                declared = re.sub(r"/\*.*?\*/|//[^\n]*", "", text.read(), flags=re.S)
            names.update(re.findall(r"\}\s*(spops_\w+);", declared))
            names.update(re.findall(r"typedef struct \w+ (spops_\w+);", declared))
            names.update(re.findall(r"^\s+(SPOPS_[A-Z0-9_]+) = ", declared, flags=re.M))
    return names


@functools.lru_cache(None)
def functions():
    """Functions of the public headers."""
    found = set()
    folder = os.path.join(ROOT, "include", "spops")
    for name in os.listdir(folder):
        if name.endswith(".h"):
            with open(os.path.join(folder, name), encoding="utf-8") as text:
                declared = re.sub(r"/\*.*?\*/|//[^\n]*", "", text.read(), flags=re.S)
            found.update(re.findall(r"(?:SPOPS_API|static inline)[^;{]*?\b(spops_\w+)\(", declared))
    return found


@functools.lru_cache(None)
def example_files():
    """Programs of examples/, by their path in the repository; segment/ has a page of its own."""
    found = []
    for folder, folders, files in os.walk(os.path.join(ROOT, "examples")):
        folders.sort()
        for name in sorted(files):
            if name.endswith(EXAMPLES):
                found.append(os.path.relpath(os.path.join(folder, name), ROOT))
    return found


def example_page(path):
    """The address of an example's page."""
    name = os.path.relpath(path, "examples")
    return name.replace("/", "_2").replace(".", "_8") + "-example.html"
