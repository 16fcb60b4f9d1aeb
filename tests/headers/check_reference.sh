#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_reference.sh SOURCE_DIR OUTPUT_DIR DOXYGEN: the reference is built, and every public name has
# words in its header: functions, types, enumerators, macros. Fields may do without.
set -eu
mkdir -p "$2"
output=$(cd "$2" && pwd)
cd "$1"
rm -rf "$output/html"
{ cat docs/site/Doxyfile; echo "OUTPUT_DIRECTORY = \"$output\""; echo "WARN_LOGFILE = \"$output/warnings\""; } | "$3" -
if grep -E "is not documented|error:" "$output/warnings" |
    grep -v -E "\(variable\) of (struct|class)|of (class|struct) (spops::|handle)"; then
    echo "the names above have no words in their header"
    exit 1
fi
for name in spops_segreduce_execute spops_voxels_options SPOPS_REDUCE_MAX spops_matrix_columns; do
    grep -rq "$name" "$output"/html/*_8h.html || { echo "$name is not in the reference"; exit 1; }
done
for picture in demo_bev.png glossary.svg; do
    [ -e "$output/html/$picture" ] || { echo "the pages lack $picture"; exit 1; }
done
