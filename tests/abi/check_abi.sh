#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_abi.sh [--renew] SOURCE_DIR CC [LIBSPOPS_SO]: the public headers declare what
# tests/abi/interface.txt says, and the library exports the functions among it. --renew writes the text.
#
# A line a declaration: a function as it is written, a field with its place and size as the compiler
# has them, an enumerator and a macro with their values; sorted, so that a diff shows what changed.
set -eu
export LC_ALL=C
renew=0
if [ "$1" = --renew ]; then renew=1; shift; fi
source_dir=$(cd "$1" && pwd) cc=$2 library=${3:+$(realpath "$3")}
reference=$source_dir/tests/abi/interface.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$source_dir/include"
for header in spops/*.h; do # DLPack's own header may not be here
    case $header in */dlpack.h) ;; *) echo "#include <$header>" ;; esac
done >"$work/headers.c"

# Statements of the headers, each on a line: what ends with ; or with the } of a function, outside of { }.
"$cc" -std=c99 -E -P -I. "$work/headers.c" | tr -s ' \t\n' ' ' | awk '
    {
        depth = 0; begin = 1
        for (i = 1; i <= length($0); ++i) {
            c = substr($0, i, 1)
            if (c == "{") ++depth
            else if (c == "}") --depth
            else if (c != ";") continue
            if (depth > 0 || c == "{") continue
            if (c == "}" && substr($0, begin) !~ /^ *(static|extern) /) continue
            line = substr($0, begin, i - begin + 1)
            gsub(/^ +| *;$/, "", line)
            if (line != "") print line
            begin = i + 1
        }
    }' >"$work/statements"

# Lines of the text, but for layouts and values, which a program prints.
awk -v program="$work/print.c" -v text="$work/text" '
    function value(name) { printf "    printf(\"enum %s %s = %%lld\\n\", (long long)%s);\n", type, name, name >program }
    function field(name, declared) {
        printf "    field(\"%s\", \"%s\", offsetof(%s, %s), sizeof(((%s *)0)->%s), __alignof__(((%s *)0)->%s));\n",
            type, declared, type, name, type, name, type, name >program
    }
    function fields(body,    n, i, k, m, parts, declarators, base, name) {
        n = split(body, parts, /; */)
        for (i = 1; i <= n; ++i) {
            if (parts[i] ~ /^ *$/) continue
            gsub(/^ +| +$/, "", parts[i])
            if (match(parts[i], /\(\*[a-z0-9_]+\)/)) {
                field(substr(parts[i], RSTART + 2, RLENGTH - 3), parts[i])
                continue
            }
            m = split(parts[i], declarators, /, */)
            match(declarators[1], /\**[a-z0-9_]+(\[[^]]*\])*$/)
            base = substr(declarators[1], 1, RSTART - 1)
            declarators[1] = substr(declarators[1], RSTART)
            for (k = 1; k <= m; ++k) {
                name = declarators[k]
                gsub(/^\*+|\[.*$/, "", name)
                field(name, base declarators[k])
            }
        }
    }
    BEGIN { print "#include \"print.h\"\nint main(void)\n{" >program }
    { body = $0; sub(/^[^{]*\{ */, "", body); sub(/ *\}[^}]*$/, "", body) }
    /^__attribute__\(\(visibility\("default"\)\)\) / {
        sub(/^__attribute__\(\(visibility\("default"\)\)\) /, "function ")
        print >text
        next
    }
    /^static inline .*[ *]spops_[a-z0-9_]*\(/ {
        sub(/ *\{.*/, ""); sub(/^static inline/, "inline")
        print >text
        next
    }
    /^typedef struct spops_[a-z0-9_]* \{/ {
        if (body ~ /[{}]/) { print "a struct within a struct: " $0; exit 1 }
        type = $NF
        fields(body)
        printf "    end(\"%s\", sizeof(%s), __alignof__(%s));\n", type, type, type >program
        next
    }
    /^typedef enum spops_[a-z0-9_]* \{/ {
        type = $NF
        n = split(body, names, / *, */)
        for (i = 1; i <= n; ++i) {
            sub(/ *=.*/, "", names[i])
            if (names[i] != "") value(names[i])
        }
        next
    }
    /^typedef .*spops_/ { sub(/^typedef/, "type"); print >text; next }
    /spops_/ { print "not understood: " $0; exit 1 }
    END { print "    return failed;\n}" >program }' "$work/statements"
"$cc" -std=c99 -dM -E -I. "$work/headers.c" |
    sed -n 's/^#define \(SPOPS_[A-Z0-9_]*\) \([(0-9-].*\)$/macro \1 = \2/p' | grep -v '^macro SPOPS_VERSION_' >>"$work/text"

# A field that was not found above leaves a gap, or the struct is too long.
cat - "$work/headers.c" >"$work/print.h" <<'END_OF_C'
#include <stddef.h>
#include <stdio.h>
static size_t begin;
static int failed;
static size_t up(size_t bytes, size_t align) { return (bytes + align - 1) / align * align; }
static void field(const char *type, const char *declared, size_t at, size_t bytes, size_t align)
{
    printf("struct %s %5zu %3zu  %s\n", type, at, bytes, declared);
    if (at != up(begin, align)) failed = fprintf(stderr, "%s: a field ahead of %s is not known\n", type, declared) > 0;
    begin = at + bytes;
}
static void end(const char *type, size_t bytes, size_t align)
{
    printf("struct %s (%zu bytes, alignment %zu)\n", type, bytes, align);
    if (bytes != up(begin, align)) failed = fprintf(stderr, "%s: a field at its end is not known\n", type) > 0;
    begin = 0;
}
END_OF_C
"$cc" -std=c99 -I. -o "$work/print" "$work/print.c"
"$work/print" >>"$work/text"
sort -u "$work/text" >"$work/interface.txt"

sed -n 's/^function .*[ *]\(spops_[a-z0-9_]*\)(.*/\1/p' "$work/interface.txt" | sort >"$work/declared"
count=$(wc -l <"$work/declared")
[ "$count" -ge 80 ] || { echo "only $count functions found in the headers, expected at least 80"; exit 1; }
if [ -n "$library" ]; then
    nm -D --defined-only "$library" | awk '{ print $NF }' | grep '^spops_' | sort >"$work/exported"
    diff "$work/declared" "$work/exported" >"$work/names" ||
        { echo "declared (<) and exported (>) functions differ:"; cat "$work/names"; exit 1; }
fi

if [ $renew = 1 ]; then
    cp "$work/interface.txt" "$reference"
    echo "$count functions, $(wc -l <"$reference") lines written to $reference"
    exit 0
fi
if ! diff "$reference" "$work/interface.txt" >"$work/changes"; then
    cat "$work/changes"
    cat <<'END'

The public interface is not (>) what tests/abi/interface.txt says (<). A change that docs/architecture.md
("The public interface and its growth") allows, or any before a release: say so in CHANGELOG.md and renew

    tests/abi/check_abi.sh --renew . cc
END
    exit 1
fi
echo "$count functions: as in tests/abi/interface.txt"
