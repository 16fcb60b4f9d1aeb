#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A public header as Doxygen reads it: the comments of our headers are plain prose with lists of
`name   text` and headings in the same form; here they become paragraphs, code and lists."""
import html
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402

ITEM = re.compile(r'^(\w[\w\[\], .*-]{0,40}?)(?: {2,}|(?<=\S) {2,})(\S.*)$')


def linked(text):
    """Names of functions lead to their words, so that 'The rest as spops_x' is one step."""
    text = page_links(text)
    return re.sub(r'\bspops_\w+\b(?!\()', lambda m: f'@ref {m.group(0)} "{m.group(0)}"' if m.group(0) in pages.functions() else m.group(0), text)


def page_links(text):
    listed = pages.read_list()[1]
    return re.sub(r'\bdocs/[\w/-]+\.md\b', lambda m: f'<a href="{listed[m.group(0)].name}.html">{m.group(0)}</a>'
                  if m.group(0) in listed else m.group(0), text)


def body(lines):
    """Lines of a comment without its stars, as Doxygen markup."""
    out, items, code = [], [], []

    def flush_code():
        if code:
            out.append('@code{.unparsed}\n' + '\n'.join(code) + '\n@endcode')
            code.clear()

    def flush_items():
        if items:
            out.append('<dl>' + ''.join(f'<dt>{k}</dt><dd>{linked(v)}</dd>' for k, v in items) + '</dl>')
            items.clear()

    for line in lines:
        text = html.escape(line.strip(), quote=False).replace('@', '@@').replace('\\', '\\\\').replace('#', '\\#').replace('%', '\\%')
        item = ITEM.match(line)
        if items and line.startswith('  ') and line.strip():
            items[-1] = (items[-1][0], items[-1][1] + ' ' + text)
        elif line.startswith('    '):
            code.append(line)
        elif item:
            flush_code()
            name, value = (html.escape(part, quote=False).replace('\\', '\\\\').replace('#', '\\#').replace('%', '\\%') for part in item.groups())
            items.append((name, value))
        else:
            flush_code()
            flush_items()
            out.append(linked(text))
    flush_code()
    flush_items()
    return '\n'.join(out)


def block(match):
    lines = [re.sub(r'^\s*\* ?', '', line) for line in match.group(2).split('\n')]
    lines = [line.rstrip() for line in lines]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return match.group(1) + '/**\n' + body(lines) + '\n*/'


def main():
    text = re.sub(r'^/[/*] SPDX-[^\n]*\n', '', open(sys.argv[1]).read())
    text = re.sub(r'/\* clang-format o(n|ff) \*/\n', '', text)
    # The file's own comment, in either style.
    if text.startswith('/*'):
        end = text.index('*/')
        words = re.sub(r'^\s*/?\*+ ?', '', text[:end], flags=re.M)
    else:
        end = text.index('\n#')
        words = re.sub(r'^// ?', '', text[:end], flags=re.M)
        end -= 2
    head = '/** @file\n' + body(words.strip('\n').split('\n')) + '\n*/\n'
    text = text[end + 2:]
    text = re.sub(r'(^|\n)/\*\*(.*?)\*/', block, text, flags=re.S)
    text = re.sub(r'/\*\* (.*?) \*/', lambda m: '/** ' + body([m.group(1)]) + ' */', text)
    # A comment after a field or an enumerator is about it; one on lines of its own before it too.
    text = re.sub(r'(\S[^\n]*?[;,]|^\s+SPOPS_\w+ = [^\n]*?|^ +[A-Z_]+ = \d+)\s*/\* (.*?)\*/',
                  lambda m: f'{m.group(1)} /**< {html.escape(re.sub(chr(10) + " *[*]? *", " ", m.group(2)), quote=False)} */',
                  text, flags=re.S | re.M)
    text = re.sub(r'^(#define \w+ [^\n/]*?)\s*/\* (.*?) ?\*/$', r'\1 /**< \2 */', text, flags=re.M)
    # An enumerator that the words above its enum explain.
    text = re.sub(r'^( +SPOPS_\w+ = -?\d+),?$', lambda m: m.group(0) + ' /**< said above */', text, flags=re.M)
    text = re.sub(r'(\n +)/\*(?!\*)(.*?)\*/(?=\n)', r'\1/**\2*/', text, flags=re.S)
    sys.stdout.write(head + text)


main()
