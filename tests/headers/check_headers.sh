#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_headers.sh INCLUDE_DIR CC CXX: every public header compiles alone, as strict C99 and C++11,
# with the build's compilers and, where it is installed, with Clang.
set -eu
include_dir=$1 cc=$2 cxx=$3
has_dlpack=1
echo '#include <dlpack/dlpack.h>' | "$cc" -fsyntax-only -x c - 2>/dev/null || has_dlpack=0
failed=0
checked=0
clang=$(command -v clang || true)
for header in $(cd "$include_dir" && ls spops/*.h spops/device/*.h); do
    if [ "$header" = spops/dlpack.h ] && [ "$has_dlpack" = 0 ]; then
        echo "skipped $header: dlpack/dlpack.h is not installed"
        continue
    fi
    warnings="-Wall -Wextra -Wshadow -pedantic -Werror -fsyntax-only"
    printf '#include "%s"\n#include "%s"\nint spops_header_was_compiled;\n' "$header" "$header" |
        "$cc" -std=c99 $warnings -Wstrict-prototypes -I"$include_dir" -x c - ||
        { echo "FAILED as C99: $header"; failed=1; }
    printf '#include "%s"\n#include "%s"\nint spops_header_was_compiled;\n' "$header" "$header" |
        "$cxx" -std=c++11 $warnings -I"$include_dir" -x c++ - ||
        { echo "FAILED as C++11: $header"; failed=1; }
    if [ -n "$clang" ]; then
        printf '#include "%s"\nint spops_header_was_compiled;\n' "$header" |
            "$clang" -std=c99 $warnings -Wno-unused-function -I"$include_dir" -x c - ||
            { echo "FAILED as C99 with Clang: $header"; failed=1; }
    fi
    checked=$((checked + 1))
done
for header in $(cd "$include_dir" && ls spops/*.hpp); do
    printf '#include "%s"\n#include "%s"\nint spops_header_was_compiled;\n' "$header" "$header" |
        "$cxx" -std=c++17 $warnings -I"$include_dir" -x c++ - ||
        { echo "FAILED as C++17: $header"; failed=1; }
    printf '#include "%s"\nint spops_header_was_compiled;\n' "$header" |
        "$cxx" -std=c++17 $warnings -fno-exceptions -I"$include_dir" -x c++ - ||
        { echo "FAILED as C++17 without exceptions: $header"; failed=1; }
    checked=$((checked + 1))
done
# Each object of the C interface has its handle.
for name in $(cat "$include_dir"/spops/*.h | sed -n 's/^SPOPS_API void spops_\([a-z_]*\)_destroy(.*/\1/p'); do
    grep -q "spops_${name}_destroy" "$include_dir/spops/spops.hpp" ||
        { echo "FAILED: spops.hpp has no handle of spops_$name"; failed=1; }
done
echo "$checked headers checked"
[ "$checked" -ge 8 ] || { echo "expected at least 8 headers in $include_dir"; exit 1; }
exit $failed
