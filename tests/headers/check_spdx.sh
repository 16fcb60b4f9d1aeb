#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_spdx.sh SOURCE_DIR: every source of ours says its licence within its first three lines.
set -eu
cd "$1"
failed=0
files=$(find include src kernels support tests bench tools examples cmake scripts docs CMakeLists.txt \
    -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.def' \
    -o -name '*.py' -o -name '*.sh' -o -name '*.cmake' -o -name 'CMakeLists.txt' -o -path 'scripts/*' \))
for file in $files; do
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || { echo "no licence line: $file"; failed=1; }
done
[ "$(echo "$files" | wc -l)" -ge 300 ]
exit $failed
