#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_tiles.sh SPOPS: what `spops bench attention` and `conv` make of --tiles, --heads and --gyroids on
# the CPU, where there are no tiles: only what is chosen is timed, and a number is a failure.
set -eu
spops=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "$*" >&2; failed=1; }

# expect STATUS TEXT WORD...: the command ends so, and says TEXT on stderr ("": anything)
expect() {
    status=$1 text=$2 found=0
    shift 2
    "$spops" bench "$@" --backend cpu --quick --samples 1 --modes hot --json >"$work/out" 2>"$work/err" || found=$?
    [ "$found" = "$status" ] || fail "bench $*: ends with $found, expected $status: $(cat "$work/err")"
    grep -qF -e "$text" "$work/err" || [ -z "$text" ] || fail "bench $*: says '$(cat "$work/err")', expected '$text'"
}
# lines NUMBER TEXT: so many lines of the last output have TEXT
lines() { [ "$(grep -cF -e "$2" "$work/out")" = "$1" ] || fail "expected $1 lines with $2: $(cat "$work/out")"; }

for item in 0 -1 100 seven 1,0 1,,2 all,x; do expect 2 "--tiles does not take '$item'" attention --tiles "$item"; done
for item in 8 8x 8x300 x8 0x64 8x64x2 1025x64; do expect 2 "--heads does not take '$item'" attention --heads "$item"; done
for item in 7 1537 large; do expect 2 "--gyroids does not take '$item'" conv --gyroids "$item"; done

expect 0 "" attention --tiles all --heads 16x32 --passes forward,backward
lines 2 '"variant": "spops"'
lines 2 '"default_tile": 0'
lines 0 '"variant": "tile'
expect 0 "" attention --heads 2x192 --passes forward
lines 1 '"variant": "spops"'
lines 0 'default_tile'
expect 1 "--tiles: tile 7 takes no rows that were timed" attention --tiles 7 --heads 2x192 --passes forward

expect 0 "" conv --tiles all --gyroids 12,16 --cols 16 --passes forward
lines 2 '"variant": "fetch_on_demand"'
lines 2 '"case": "gyroid 16 16 to 16 forward"'
lines 0 '"variant": "tile'
expect 1 "--tiles: tile 21 takes no rows that were timed" conv --tiles 21,all --gyroids 12 --cols 16 --passes forward
exit $failed
