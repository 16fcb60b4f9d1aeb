#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_reference.sh SOURCE_DIR OUTPUT_DIR DOXYGEN: the reference is built, every public name has words in
# its header (functions, types, enumerators, macros; fields may do without), and no link is dead.
set -eu
mkdir -p "$2"
output=$(cd "$2" && pwd)
cd "$1"
rm -rf "$output/html"
"$3" -l "$output/layout.xml"
sed -i 's/type="files" visible="yes" title=""/type="files" visible="yes" title="Headers"/
    s/type="classes" visible="yes" title=""/type="classes" visible="yes" title="Structs"/' "$output/layout.xml"
python3 -B docs/site/make_groups.py >"$output/groups.dox"
{
    cat docs/site/Doxyfile
    for setting in "INPUT += groups.dox" "LAYOUT_FILE = layout.xml" "WARN_LOGFILE = warnings"; do
        echo "${setting%= *}= \"$output/${setting##*= }\""
    done
    echo "OUTPUT_DIRECTORY = \"$output\""
    echo "STRIP_FROM_PATH = \"$output\" \"$PWD/include\" \"$PWD\""
} | "$3" -
python3 -B docs/site/finish.py "$output/html"
if grep -E "is not documented|error:" "$output/warnings" |
    grep -v -E "\(variable\) of (struct|class)|of (class|struct) (spops::|handle)"; then
    echo "the names above have no words in their header"
    exit 1
fi
if grep -E "unable to resolve|not found" "$output/warnings"; then
    echo "the references above lead nowhere"
    exit 1
fi
python3 -B tests/docs/check_links.py . "$output/html"
for name in spops_segreduce_execute spops_voxels_options SPOPS_REDUCE_MAX spops_matrix_columns; do
    grep -rq "$name" "$output"/html/*_8h.html || { echo "$name is not in the reference"; exit 1; }
done
for picture in demo_bev.png glossary.svg; do
    [ -e "$output/html/$picture" ] || { echo "the pages lack $picture"; exit 1; }
done
