#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_operators.sh [--renew] PAGE PRINT_OPERATORS [JSON]: the list at the end of docs/operators.md, and
# the JSON that is installed, are what the library's own list gives. --renew writes the list.
set -eu
renew=0
if [ "$1" = --renew ]; then renew=1; shift; fi
page=$1 print=$2 json=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
begin='<!-- the list of operators, written by tests/docs/check_operators.sh --renew -->'
grep -qxF "$begin" "$page" || { echo "$page has no line: $begin"; exit 1; }
awk -v begin="$begin" '{ print } $0 == begin { exit }' "$page" >"$work/page"
{ echo; echo '```'; "$print" text; echo '```'; } >>"$work/page"
if [ $renew = 1 ]; then
    cp "$work/page" "$page"
    exit 0
fi
diff "$page" "$work/page" || { echo "renew: tests/docs/check_operators.sh --renew PAGE PRINT_OPERATORS"; exit 1; }
[ -n "$json" ] || exit 0
"$print" json | cmp - "$json"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys
ops = json.load(open(sys.argv[1]))["operators"]
names = [op["name"] for op in ops]
assert len(names) == len(set(names)) > 50, len(names)
for op in ops:
    assert op["outputs"] and op["doc"] and op["function"].startswith("spops_"), op["name"]
print(len(names), "operators")' "$json"
fi
