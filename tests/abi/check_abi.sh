#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_abi.sh [--renew] SOURCE_DIR CC [LIBSPOPS_SO]: the public headers promise what they promised
# when tests/abi/spops.abi was written: no function, type, field or enumerator is gone, moved or
# changed. --renew writes the reference. Skipped (77) without abidw and abidiff (abigail-tools).
#
# What is compared is made from the headers alone: a library that defines each function of theirs,
# emptily. So no internal type takes part, and it compiles in a moment.
set -eu
renew=0
if [ "$1" = --renew ]; then renew=1; shift; fi
source_dir=$(cd "$1" && pwd) cc=$2 library=${3:-}
reference=$source_dir/tests/abi/spops.abi
if ! command -v abidw >/dev/null || ! command -v abidiff >/dev/null; then
    echo "skipped: abidw and abidiff are not here (Debian: abigail-tools)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A preprocessed declaration with SPOPS_API becomes a definition.
cd "$source_dir/include"
for header in spops/*.h; do
    case $header in */dlpack.h) ;; *) echo "#include <$header>" ;; esac
done >"$work/headers.c"
"$cc" -std=c99 -E -P -I. "$work/headers.c" | tr '\n' ' ' |
    sed 's/__attribute__((visibility("default"))) *\([^;{}]*\);/\1 { __builtin_trap(); }/g' >"$work/defined.c"
# Types that no function names are compared as well.
cat spops/*.h | sed -n 's/^typedef \(enum\|struct\) \(spops_[a-z0-9_]*\) {.*/void type_of_\2(\2 *p) {}/p' |
    sort -u >>"$work/defined.c"
"$cc" -std=c99 -g -gdwarf-4 -fPIC -shared -w -o "$work/libspops.so" "$work/defined.c"

names() { nm -D --defined-only "$1" | awk '{ print $NF }' | grep '^spops_' | sort; }
names "$work/libspops.so" >"$work/declared"
count=$(wc -l <"$work/declared")
[ "$count" -ge 80 ] || { echo "only $count functions found in the headers, expected at least 80"; exit 1; }
if [ -n "$library" ]; then
    names "$library" >"$work/exported"
    diff "$work/declared" "$work/exported" >"$work/names" ||
        { echo "declared (<) and exported (>) functions differ:"; cat "$work/names"; exit 1; }
fi

if [ $renew = 1 ]; then
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --out-file "$reference" "$work/libspops.so"
    echo "$count functions written to $reference"
    exit 0
fi
# Added functions are no change for those who do not know them.
if ! abidiff --no-added-syms --no-show-locs "$reference" "$work/libspops.so" >"$work/changes"; then
    cat "$work/changes"
    cat <<'END'

The public interface is not what tests/abi/spops.abi says. A change that docs/architecture.md ("The
public interface and its growth") allows, or any before a release: say so in CHANGELOG.md and renew

    tests/abi/check_abi.sh --renew . cc
END
    exit 1
fi
echo "$count functions: as in tests/abi/spops.abi"
