#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_train.sh SPOPS SEGMENT_TRAIN WORK_DIR
# Scans, trains, goes on after an interruption, and is told what is wrong; on the CPU, small.
set -eu
spops=$1 train=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
cd "$work"
"$spops" scan --out scans --count 3 --beams 16 --columns 120 --range 30
set -- --train scans --backend cpu --batch 1 --widths 8,8,8,8,8 --voxel-mm 400 --steps 6 --every 3

"$train" "$@" --test scans --out whole --curve curve.png
test -s curve.png
"$train" "$@" --out halves --save-every 3 >log
grep -q '^step .* 6 of 6 ' log
# The state of an interrupted training is that of step 3, which step 6 wrote over: make it again.
"$train" "$@" --out halves --save-every 4 >/dev/null
rm halves
"$train" "$@" --out halves --resume halves
cmp whole halves
"$train" --check whole --test scans --backend cpu --json >checked
grep -q '"test_scans": 3' checked
# In 8 bits nearly as many points are right.
right() { sed 's/.*"accuracy": \([0-9.]*\).*/\1/' "$1"; }
for codes in i8 f8e4m3; do
    "$train" --check whole --test scans --backend cpu --json --codes $codes --calibrate scans \
        --calibrate-scans 2 >coded
    echo "$(right checked) $(right coded)" |
        awk '{ d = $1 - $2; if (d < -0.05 || d > 0.05) { print "right: " $0; exit 1 } }'
done

# refused TEXT ARGUMENTS: ends badly, says so, and leaves `whole` alone.
cp whole before
refused() {
    text=$1
    shift
    if "$train" "$@" 2>log; then
        echo "not refused: $*"
        exit 1
    fi
    grep -q -e "$text" log || { cat log; exit 1; }
    cmp whole before
}
refused 'is missing' --out whole
refused 'expected five multiples of 8' "$@" --widths 8,8,8,8,9 --out whole
refused 'No such file' "$@" --resume nothing --out whole
refused 'no scan_\*.npy' --train . --out whole --backend cpu
refused 'want each other' --check whole --test scans --codes i8
refused 'codes is for --check' "$@" --codes i8 --calibrate scans --out whole
head -c 1000 whole >cut
refused 'truncated' --check cut --test scans
printf 'no array' >scans/scan_000009.npy
refused 'scan_000009.npy: not a .npy file' "$@" --out whole
