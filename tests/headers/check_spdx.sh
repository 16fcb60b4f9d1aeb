#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_spdx.sh SOURCE_DIR: every source of ours says its licence within its first three lines.
set -eu
cd "$1"
failed=0
files=$(find include src kernels bindings support tests bench tools examples cmake scripts docs CMakeLists.txt \
    -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.def' \
    -o -name '*.py' -o -name '*.sh' -o -name '*.cmake' -o -name 'CMakeLists.txt' -o -path 'scripts/*' \))
awk 'FNR <= 3 && /SPDX-License-Identifier: Apache-2.0/ { said[FILENAME] = 1 }
    END {
        for (i = 1; i < ARGC; ++i)
            if (!(ARGV[i] in said)) { print "no licence line: " ARGV[i]; failed = 1 }
        exit failed
    }' $files || failed=1
[ "$(echo "$files" | wc -l)" -ge 300 ]
exit $failed
