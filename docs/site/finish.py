#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""After Doxygen: a box on every page that searches all their words, and the index it looks into.

    finish.py HTML               write search_words.js and put the box on every page
    finish.py HTML --find WORDS  what the box would find, best first (the rule of search.js)

The index is the text of every section and of every documented name: [address, page, section, text].
"""
import html
import json
import os
import re
import shutil
import sys
from html.parser import HTMLParser

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402

BOX = """<form id="words-form" action="search_words.html" role="search"><input id="words" name="q" type="search"
placeholder="Search all pages" aria-label="Search all pages" autocomplete="off"/><div id="words-found"></div></form>
<script src="search_words.js"></script><script src="search.js"></script>"""
LISTINGS = re.compile(r"(_source|^search_words|^dir_[0-9a-f]+|^annotated|^classes|^files|^functions\w*|^globals\w*|"
                      r"^pages|^examples|-members|^hierarchy|^namespaces?|^namespacemembers\w*)\.html$")


class Sections(HTMLParser):
    """The text of a page between one anchor of a heading or a documented name and the next."""

    def __init__(self):
        super().__init__()
        self.title, self.sections = "", []  # [anchor, heading, [text]]
        self.in_title = self.skip = 0
        self.heading = None
        self.contents = False

    def start(self, anchor):
        self.sections.append([anchor, "", []])

    def handle_starttag(self, tag, attributes):
        have = dict(attributes)
        name = have.get("class", "") or ""
        if tag == "title":
            self.in_title = 1
        elif tag in ("script", "style"):
            self.skip += 1
        elif tag == "div" and name in ("contents", "textblock") and not self.contents:
            self.contents = True
            self.start("")
        elif self.contents and tag == "a" and have.get("id") and (name == "anchor" or not have.get("href")):
            if name == "anchor" or re.fullmatch(r"(g?a)[0-9a-f]{20,}", have["id"]):
                self.start(have["id"])
        elif self.contents and (tag in ("h1", "h2", "h3") or (tag == "h2" and name == "memtitle")):
            self.heading = []

    def handle_endtag(self, tag):
        if tag == "title":
            self.in_title = 0
        elif tag in ("script", "style"):
            self.skip -= 1
        elif tag in ("h1", "h2", "h3") and self.heading is not None:
            words = " ".join("".join(self.heading).replace("\u25c6", "").replace("\xa0", " ").split())
            if self.sections and not self.sections[-1][1]:
                self.sections[-1][1] = words
            self.heading = None

    def handle_data(self, text):
        if self.in_title:
            self.title += text
        elif self.contents and not self.skip:
            if self.heading is not None:
                self.heading.append(text)
            self.sections[-1][2].append(text)


def index(folder):
    rows = []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".html") or LISTINGS.search(name):
            continue
        reader = Sections()
        with open(os.path.join(folder, name), encoding="utf-8") as text:
            reader.feed(text.read())
        page = re.sub(r"^libspops: ", "", reader.title.strip())
        for anchor, heading, words in reader.sections:
            words = " ".join("".join(words).replace("\u25c6", " ").split())
            if words:
                rows.append([name + ("#" + anchor if anchor else ""), page, heading, words])
    return rows


def find(rows, query):
    """As search.js does: every word must occur; titles and whole words count more, sources of examples less."""
    words = query.lower().split()
    found = []
    for number, (address, page, heading, text) in enumerate(rows):
        score = 0
        low, titles = text.lower(), (page + " " + heading).lower()
        for word in words:
            if word not in low and word not in titles:
                break
            whole = re.search(r"(?<![a-z0-9_])" + re.escape(word) + r"(?![a-z0-9_])", low)
            score += (8 if word in titles else 0) + (4 if whole else 1)
        else:
            found.append((-score + (6 if "-example" in address else 0), number))
    return [rows[number] for _, number in sorted(found)]


def put_box(folder):
    for name in os.listdir(folder):
        if not name.endswith(".html"):
            continue
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8") as text:
            page = text.read()
        page = page.replace('<div id="titlearea">', '<div id="titlearea">' + BOX, 1)
        # A C program's own names are not ours: only names that begin with spops are links in it.
        page = re.sub(r'<a class="code[^"]*"[^>]*>((?!spops|SPOPS)[^<]*)</a>', r"\1", page)
        with open(path, "w", encoding="utf-8") as out:
            out.write(page)


def search_page(folder):
    """The page of all that was found, in the frame of another page."""
    with open(os.path.join(folder, "group_start.html"), encoding="utf-8") as text:
        page = text.read()
    begin, end = page.index('<div class="contents">'), page.index("</div><!-- contents -->")
    page = page[:begin] + '<div class="contents"><div id="words-page"></div>' + page[end:]
    title = re.search(r'<div class="title">([^<]*)', page).group(1)
    page = page.replace(f'<div class="title">{title}', '<div class="title">Search', 1).replace(f": {title}</title>", ": Search</title>")
    with open(os.path.join(folder, "search_words.html"), "w", encoding="utf-8") as out:
        out.write(page)


def main():
    folder = sys.argv[1]
    if sys.argv[2:3] == ["--find"]:
        with open(os.path.join(folder, "search_words.js"), encoding="utf-8") as text:
            rows = json.loads(text.read().removeprefix("var searchWords = ").rstrip(";\n"))
        for address, page, heading, _ in find(rows, " ".join(sys.argv[3:])):
            print(address, page, heading, sep=" | ")
        return
    rows = index(folder)
    with open(os.path.join(folder, "search_words.js"), "w", encoding="utf-8") as out:
        out.write("var searchWords = " + json.dumps(rows, ensure_ascii=False, separators=(",", ":")) + ";\n")
    shutil.copy(os.path.join(pages.SITE, "search.js"), folder)
    search_page(folder)
    put_box(folder)
    print(f"{len(rows)} sections can be searched")


main()
