#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_reduction.sh SOURCE_DIR NVCC: the check of a reduction in docs/extending.md compiles, and finds
# a struct without a member.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^  ```cuda$/,/^  ```$/p' "$1/docs/extending.md" | sed '1d;$d' >"$work/check.cu"
grep -q seggrad_kernel "$work/check.cu"
"$2" -std=c++17 -arch=sm_90 -I"$1/include" -c "$work/check.cu" -o "$work/check.o"
grep -v 'state combine' "$work/check.cu" >"$work/bad.cu"
if "$2" -std=c++17 -arch=sm_90 -I"$1/include" -c "$work/bad.cu" -o "$work/bad.o" 2>"$work/errors"; then
    echo "a struct without combine compiled"
    exit 1
fi
grep -q combine "$work/errors"
