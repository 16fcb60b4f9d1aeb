#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A page of the repository as Doxygen reads it: with an id of its own, so that its address carries no folder, an
anchor at every heading, links that lead to pages of the site, and names of the interface that lead to their words.

    markdown.py FILE
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402

GROUPS, PAGES = pages.read_list()
SPAN = re.compile(r"(!\[[^]]*\]\([^)]*\))|\[((?:[^]\[]|\[[^]]*\])*)\]\(([^)\s]+)\)|`([^`]+)`")


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text):
    """A code span: a name of the interface and a header lead to their page."""
    header = re.fullmatch(r"spops/(\w+)\.(h|hpp)", text)
    if header:
        page = f"{header.group(1).replace('_', '__')}_8{header.group(2)}.html"
        return f'<a class="el" href="{page}"><code>{text}</code></a>'
    if text in pages.public_names():
        return f'<code>@ref {text} "{text}"</code>'
    return f"`{text}`"


def target(path, link):
    """Where a link of the page at path leads on the site; None: the site has no such page."""
    if re.match(r"[a-z]+:", link):
        return link
    file, _, anchor = link.partition("#")
    file = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
    if file == "README.md":
        return f"index.html#readme-{anchor}" if anchor else "index.html"
    if file in PAGES:
        name = PAGES[file].name
        return f"{name}.html#{name}-{anchor}" if anchor else f"{name}.html"
    if file in pages.example_files():
        return pages.example_page(file)
    if file.startswith("include/spops/"):
        return os.path.basename(file).replace("_", "__").replace(".", "_8") + ".html"
    if file == "examples":
        return "example_programs.html"
    return None


def line_of(path, line):
    def replace(match):
        image, text, link, span = match.groups()
        if image:
            return image
        if span is not None:
            return code(span)
        address = target(path, link)
        text = re.sub(r"`([^`]+)`", lambda m: f"<code>{escape(m.group(1))}</code>", text)
        return f'<a href="{address}">{text}</a>' if address else text

    return SPAN.sub(replace, line)


def main():
    path = os.path.relpath(os.path.abspath(sys.argv[1]), pages.ROOT)
    with open(sys.argv[1], encoding="utf-8") as text:
        lines = text.read().split("\n")
    start = path == "README.md"
    if not start and path not in PAGES:
        sys.exit(f"{path} is not in docs/site/pages.txt")
    name = "readme" if start else PAGES[path].name
    anchors = {number: (level, text, anchor) for number, level, text, anchor in pages.headings(lines)}
    fenced, out = False, []
    for number, line in enumerate(lines):
        if number in anchors:
            level, text, anchor = anchors[number]
            text = text.replace("`", "")
            if level == 1:
                out.append(f"@mainpage {text}" if start else f"# {text} {{#{name}}}")
            else:
                # The start page has no section above those of the second level.
                out.append(f"{'#' * (level - start)} {text} {{#{name}-{anchor}}}")
        elif re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
            out.append(line)
        elif fenced or line.startswith("    "):
            out.append(line)
        else:
            out.append(line_of(path, line))
    if start:
        out.append("\n# All pages {#readme-all-pages}\n")
        out.extend(f"- @subpage group_{group} \"{title}\"" for group, title in GROUPS)
    print("\n".join(out))


main()
