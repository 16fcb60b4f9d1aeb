#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_readme.sh SOURCE_DIR: the program in README.md is the example that the tests run.
set -eu
cd "$1"
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' >"${TMPDIR:-/tmp}/spops-readme-$$.c"
trap 'rm -f "${TMPDIR:-/tmp}/spops-readme-$$.c"' EXIT
# The file's first three lines are about itself.
sed 1,3d examples/bevpool_minimal.c | diff - "${TMPDIR:-/tmp}/spops-readme-$$.c"
