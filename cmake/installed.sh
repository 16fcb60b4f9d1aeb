#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What was installed from a build folder, and how it goes away again. NOTES is a folder there, with a
# file for each place: the place, then a line for each folder (d) and file (f) of ours.
#
#   installed.sh before NOTES ROOT OWN FOLDER...     ahead of the install rules: which folders are missing
#   installed.sh after NOTES ROOT FILE [DESTDIR]     what the rules installed: FILE lists it, without DESTDIR
#   installed.sh remove NOTES                        take away what was installed last
#
# ROOT is the prefix, after DESTDIR. OWN (a list with :) are the folders in it that nobody else installs
# into; other FOLDERs, and ROOT, are ours where an install made them. No folder above ROOT is ours, and
# none goes that holds anything, hidden or not.
set -eu
export LC_ALL=C
step=$1 notes=$2

case $step in
before)
    root=$3 own=$4
    shift 4
    for folder in "$@"; do
        case ":$own:" in *":$folder:"*) printf 'd %s\n' "$root/$folder" ;; esac
        path=$root/$folder
        while [ ! -e "$path" ] && [ "${#path}" -ge "${#root}" ]; do
            printf 'd %s\n' "$path"
            path=${path%/*}
        done
    done >"$notes.missing"
    ;;
after)
    root=$3 files=$4 destdir=${5:-}
    mkdir -p "$notes"
    name=$notes/$(printf '%s' "$root" | cksum | tr ' ' -)
    {
        if [ -e "$name" ]; then sed 1d "$name"; fi
        while IFS= read -r line; do [ ! -d "${line#d }" ] || printf '%s\n' "$line"; done <"$notes.missing"
        sed '/^$/d' "$files" | while IFS= read -r file; do printf 'f %s\n' "$destdir$file"; done
    } | sort -u >"$notes.lines"
    { printf '%s\n' "$root" && cat "$notes.lines"; } >"$notes.whole"
    mv "$notes.whole" "$name"
    rm "$notes.lines" "$notes.missing"
    ;;
remove)
    # The place of the last install that is still there.
    noted=
    for name in $(ls -t "$notes" 2>/dev/null); do # names of ours: digits and a dash
        root=$(head -n 1 "$notes/$name")
        if [ ! -d "$root" ]; then
            rm "$notes/$name"
        elif [ -z "$noted" ]; then
            noted=$notes/$name
        fi
    done
    [ -n "$noted" ] || { echo "nothing that was installed from here is left"; exit 1; }
    root=$(head -n 1 "$noted")
    printf 'uninstalling from %s\n' "$root"
    count=0 failed=0
    while IFS= read -r line; do
        case $line in 'f '*) ;; *) continue ;; esac
        file=${line#f }
        [ -e "$file" ] || [ -L "$file" ] || continue
        if rm -f -- "$file"; then count=$((count + 1)); else failed=$((failed + 1)); fi
    done <"$noted"
    # Folders of ours that held these files, or hold folders of ours that did: what is inside comes first.
    awk -v root="$root" '
        NR == 1 { next }
        /^d / { ours[substr($0, 3)] = 1 }
        /^f / { files[substr($0, 3)] = 1 }
        END {
            for (path in files)
                while (sub("/[^/]*$", "", path) && length(path) >= length(root) && !(path in seen)) {
                    seen[path] = 1
                    for (at = path; length(at) >= length(root); sub("/[^/]*$", "", at))
                        if (at in ours) { print path; break }
                }
        }' "$noted" | sort -r | while IFS= read -r folder; do
        [ ! -d "$folder" ] || [ -L "$folder" ] || rmdir -- "$folder" 2>/dev/null || true
    done
    printf '%d files removed\n' "$count"
    if [ "$failed" -gt 0 ]; then
        printf '%d could not be removed\n' "$failed"
        exit 1
    fi
    rm "$noted"
    for name in $(ls "$notes"); do
        printf 'also installed from here, and left: %s\n' "$(head -n 1 "$notes/$name")"
    done
    ;;
*)
    echo "installed.sh: unknown step $step" >&2
    exit 2
    ;;
esac
