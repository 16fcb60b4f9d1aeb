#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh ENGINE DECODER: both give the same bits, and a limit of memory is kept.
set -euo pipefail
engine=$1 decoder=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

bits() { # of both frames
    grep "bits of the outputs" "$1" >"$2"
    [ "$(wc -l <"$2")" = 2 ] || { echo "$1: expected the bits of two frames"; exit 1; }
}

same() { # options of both
    "$decoder" --width 0.125 --backend cpu --no-times --check "$@" >"$dir/decoder.txt"
    bits "$dir/decoder.txt" "$dir/expected.txt"
    for slice in 0 100; do
        "$engine" --width 0.125 --memory 0 --slice $slice "$@" >"$dir/engine.txt"
        bits "$dir/engine.txt" "$dir/found.txt"
        cmp "$dir/expected.txt" "$dir/found.txt" || { echo "other bits: slices of $slice, $*"; exit 1; }
    done
}

"$decoder" --width 0.125 --size 32 --backend cpu --no-times --check --generate "$dir/drawn.safetensors" >/dev/null
same --size 64 --dtype f32 --weights "$dir/drawn.safetensors"
same --size 64 --dtype f16
same --size 32 --shape predicted --growth 6

# What it says is what it needs: 1 MB less is too little.
said=$("$engine" --width 0.125 --size 64 --memory 0 --dry | sed -n 's/.* will take \([0-9.]*\) GB.*/\1/p')
low=$(awk "BEGIN { print $said - 0.001 }") high=$(awk "BEGIN { print $said + 0.001 }")
"$engine" --width 0.125 --size 64 --memory "$high" >/dev/null
if "$engine" --width 0.125 --size 64 --memory "$low" >"$dir/out.txt" 2>"$dir/refused.txt"; then
    echo "a limit of $low GB was not kept"
    exit 1
fi
grep -E "^engine: the decoder at 64\^3 in f32 needs [0-9.]+ GB, the limit is [0-9.]+ GB; nothing was allocated$" "$dir/refused.txt"
[ ! -s "$dir/out.txt" ]
echo "the same bits; a limit is kept: right"
