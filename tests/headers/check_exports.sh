#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_exports.sh LIBSPOPS_SO SONAME: what the shared library exports, and what it asks of the host.
set -eu
library=$1 soname=$2
failed=0
exported=$(nm -D --defined-only "$library" | awk '{ print $NF }')
count=$(echo "$exported" | grep -c '^spops_' || true)
# The boxed entries of operators have names of their own (include/spops/call.h).
foreign=$(echo "$exported" | grep -v -e '^spops_' -e '^__tvm_ffi_[a-z]' || true)
if [ -n "$foreign" ]; then
    echo "exported, but neither spops_ nor __tvm_ffi_:"
    echo "$foreign"
    failed=1
fi
[ "$count" -ge 40 ] || { echo "only $count functions are exported, expected at least 40"; failed=1; }
# The driver and the CUDA runtime are looked for at run time, never by the loader.
undefined=$(nm -D --undefined-only "$library" | awk '{ print $NF }' | grep -E '^(cu[A-Z]|cuda[A-Z]|nvrtc)' || true)
[ -z "$undefined" ] || { echo "undefined:"; echo "$undefined"; failed=1; }
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if echo "$needed" | grep -E '^lib(cuda|cudart|nvrtc)'; then
    echo "linked against CUDA libraries"
    failed=1
fi
found=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$found" = "$soname" ] || { echo "SONAME is $found, expected $soname"; failed=1; }
echo "$count functions exported; needs" $needed
exit $failed
