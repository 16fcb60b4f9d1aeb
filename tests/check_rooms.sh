#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Refuses an include between rooms that tests/rooms.txt does not allow.
set -euo pipefail
cd "$(dirname "$0")/.."

awk '
    # The table: allowed[room, other], and the order of its rows.
    FILENAME == "tests/rooms.txt" {
        if ($0 ~ /^#/ || NF == 0) next
        room = $1
        sub(":", "", room)
        for (i = 2; i <= NF; ++i) {
            if (!($i in row)) { printf "tests/rooms.txt: %s names %s, which is no row before it\n", room, $i; ++bad }
            allowed[room, $i] = 1
        }
        row[room] = FNR
        next
    }
    /^#include "/ {
        split(FILENAME, at, "/")
        room = at[2]
        split($2, quoted, "\"")
        n = split(quoted[2], to, "/")
        if (n < 2 || to[1] == "third_party" || to[1] == "spops") next
        other = to[1] == "kernels" ? to[2] : to[1]
        if (n == 2 && to[1] == "kernels") next # kernels/launchers.h
        ++includes
        if (!(room in row)) { printf "%s: room %s has no row in tests/rooms.txt\n", FILENAME, room; ++bad; next }
        if (other == room || other == "core" || other == "backends" || (room, other) in allowed) {
            # Host code knows no kernels but their tuning tables.
            if (at[1] == "src" && to[1] == "kernels" && to[n] !~ /_tuning\.h$/) {
                printf "%s:%d: src includes %s\n", FILENAME, FNR, quoted[2]; ++bad
            }
            next
        }
        printf "%s:%d: room %s may not include %s (tests/rooms.txt)\n", FILENAME, FNR, room, quoted[2]
        ++bad
    }
    END {
        if (includes < 300) { printf "only %d includes were read\n", includes; ++bad }
        printf "%d includes, %d refused\n", includes, bad
        exit bad > 0
    }' tests/rooms.txt $(find src kernels -mindepth 2 -name '*.[ch]' -o -mindepth 2 -name '*.cu' -o -mindepth 2 -name '*.cuh')
