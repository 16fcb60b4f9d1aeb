#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_api_rows.sh INCLUDE_DIR FUZZ_API.C OPERATORS.DEF: every public function is called by the fuzzer of call sequences. A
# new one needs a row there: a call with arguments that are right, or nearly so. Those that the list of
# operators names (OPERATORS.DEF) are called by way of it.
# Handlers of XLA take frames that XLA alone makes: python/tests/test_jax.py calls them.
set -eu
missing=$(cat "$1"/spops/*.h | sed 's://.*::' | tr '\n' ' ' | sed 's:/\*[^*]*\*\**\([^/*][^*]*\*\**\)*/: :g' |
    grep -o 'SPOPS_API [^;{]*;' | grep -o 'spops_[a-z0-9_]*(' | sort -u | while read -r name; do
    case $name in spops_call_xla_*) continue ;; esac
    grep -qF "$name" "$2" || grep -qF "\"${name%(}\"" "$3" || echo "${name%(}"
done)
if [ -n "$missing" ]; then
    echo "not called by $2:"
    echo "$missing"
    exit 1
fi
