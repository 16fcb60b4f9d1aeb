// SPDX-License-Identifier: Apache-2.0
// The network that spops demo ships, as it lies in data/. The assembler takes it in: as an array in C
// it would take the compiler seconds.
#include "tools/segment_weights.h"

__asm__(".section .rodata\n"
        ".balign 16\n"
        ".global segment_weights\n"
        "segment_weights:\n"
        ".incbin \"" SPOPS_SEGMENT_WEIGHTS "\"\n"
        ".global segment_weights_end\n"
        "segment_weights_end:\n"
        ".byte 0\n"
        ".previous\n");
