#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages that no file of the repository is: one for each group of pages.txt, and one for each example.

    make_groups.py > groups.dox
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402


def main():
    groups, listed = pages.read_list()
    missing = [path for path in listed if not os.path.exists(os.path.join(pages.ROOT, path))]
    if missing:
        sys.exit(f"docs/site/pages.txt names what is not there: {' '.join(missing)}")
    for group, title in groups:
        print(f"/** @page group_{group} {title}\n")
        for page in listed.values():
            if page.group == group:
                print(f"- @subpage {page.name} \u2013 {page.about}")
        print("*/\n")
    for path in pages.example_files():
        print(f"/** @example {os.path.relpath(path, 'examples')} */\n")


main()
