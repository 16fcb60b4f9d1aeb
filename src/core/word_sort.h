// SPDX-License-Identifier: Apache-2.0
// A sort of 64-bit words by some of their bits, stable, on the CPU. What goes with a key stands in the
// word's lower bits, so that one array moves where a sort of pairs moves two.
#ifndef SPOPS_CORE_WORD_SORT_H
#define SPOPS_CORE_WORD_SORT_H

#include "core/memory.h"
#include "core/threads.h"

// Bits that hold the numbers 0 .. n - 1.
static inline int spops_bits_below(int64_t n)
{
    return n > 1 ? 64 - __builtin_clzll((uint64_t)n - 1) : 0;
}

// Counters of a sort of up to max_words words.
size_t spops_word_counts(int64_t max_words);

// Sort words[0 .. n - 1] by their bits low .. high - 1, by way of spare; returns where the result is,
// words or spare. counts: spops_word_counts(max_words) elements, n <= max_words.
uint64_t *spops_word_sort(spops_team team, int64_t n, int low, int high, uint64_t *words,
                          uint64_t *spare, int32_t *counts);

#endif
