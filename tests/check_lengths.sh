#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Refuses functions that are too long, from the first line of the declaration to the last brace: 70 lines
# on the host, 140 on a device, and in tests, whose refusals are lists, 170.
set -euo pipefail
cd "$(dirname "$0")/.."

# The formatter puts the brace of a function, and of nothing else outside of functions, on a line alone.
awk '
    FNR == 1 { begin = 0; inside = 0 }
    inside {
        if ($0 ~ end) {
            lines = FNR - begin + 1
            most = FILENAME ~ /^tests\// ? 170 : head ~ /__global__|__device__/ ? 140 : 70
            ++functions
            if (lines > most) { printf "%s:%d: %s has %d lines, expected up to %d\n", FILENAME, begin, name, lines, most; ++bad }
            inside = 0
            begin = 0
        }
        next
    }
    /^ *\{$/ {
        if (begin == 0 || head !~ /\(/) next
        name = head
        sub(/^.*__launch_bounds__\([^)]*\)/, "", name)
        gsub(/__attribute__\(\([^)]*\)*\)\)/, "", name)
        sub(/\(.*/, "", name)
        sub(/ *$/, "", name)
        sub(/.*[ *&]/, "", name)
        inside = 1
        end = $0
        sub(/\{/, "\\}", end)
        end = "^" end
        next
    }
    /^ *(\/\/|\/\*|\*|#|template)/ || /^$/ || /[;}:{]$/ { begin = 0; head = ""; next }
    begin == 0 { begin = FNR; head = "" }
    { head = head " " $0 }
    END {
        if (functions < 5000) { printf "only %d functions were found\n", functions; ++bad }
        printf "%d functions, %d too long\n", functions, bad
        exit bad > 0
    }' $(find bench bindings examples include kernels src support tests tools \
        -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh')
