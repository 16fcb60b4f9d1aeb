// SPDX-License-Identifier: Apache-2.0
// Two passes through memory, then the caches: words are divided by their highest bits into buckets of
// about a thousand, and each bucket, which fits the first-level cache, is sorted by one thread.
#include "core/word_sort.h"

#include <string.h>

#include "core/radix_sort.h"

#define BUCKET_WORDS    1024
#define MAX_BUCKET_BITS 11
#define MAX_PARTS       32
#define DIGIT_BITS      9 // of a bucket's sort
#define MAX_PASSES      8 // of DIGIT_BITS in 64
#define INSERTED        24
// Where one bucket has a quarter of the words, and they are so many: all threads at each digit.
#define SKEWED_WORDS      65536
#define SKEWED_DIGIT_BITS 11
#define SKEWED_PARTS      8

static int bucket_bits(int64_t n)
{
    int bits = 0;
    while (bits < MAX_BUCKET_BITS && n >> (bits + 1) >= BUCKET_WORDS)
        ++bits;
    return bits;
}

// Counters of the parts together are few beside the words.
static int parts_of(spops_team team, int64_t n)
{
    const int64_t most = (n >> bucket_bits(n)) / 16;
    const int parts = spops_team_parts(team, MAX_PARTS);
    return most < 1 ? 1 : most < parts ? (int)most : parts;
}

size_t spops_word_counts(int64_t max_words)
{
    const size_t buckets = (size_t)MAX_PARTS << bucket_bits(max_words);
    const size_t digits = max_words >= SKEWED_WORDS ? (size_t)SKEWED_PARTS << SKEWED_DIGIT_BITS : 0;
    return buckets > digits ? buckets : digits;
}

// ---- A bucket -----------------------------------------------------------------------------------

static void insert_all(uint64_t *words, int64_t n, uint64_t mask)
{
    for (int64_t i = 1; i < n; ++i) {
        const uint64_t word = words[i], key = word & mask;
        int64_t at = i;
        for (; at > 0 && (words[at - 1] & mask) > key; --at)
            words[at] = words[at - 1];
        words[at] = word;
    }
}

// By bits low .. high - 1, the result in words.
static void sort_bucket(uint64_t *words, uint64_t *spare, int64_t n, int low, int high)
{
    const int bits = high - low;
    const int num_passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
    const int digit_bits = num_passes > 0 ? (bits + num_passes - 1) / num_passes : 0;
    const uint32_t mask = ((uint32_t)1 << digit_bits) - 1;
    uint32_t counts[MAX_PASSES][1 << DIGIT_BITS];
    uint64_t *from = words, *to = spare;

    if (n < 2 || bits == 0) return;
    if (n <= INSERTED) {
        insert_all(words, n, (bits < 64 ? ((uint64_t)1 << bits) - 1 : ~(uint64_t)0) << low);
        return;
    }
    for (int pass = 0; pass < num_passes; ++pass)
        memset(counts[pass], 0, ((size_t)mask + 1) * sizeof **counts);
    for (int64_t i = 0; i < n; ++i) {
        uint64_t rest = words[i] >> low;
        for (int pass = 0; pass < num_passes; ++pass, rest >>= digit_bits)
            ++counts[pass][rest & mask];
    }
    for (int pass = 0; pass < num_passes; ++pass) {
        const int shift = low + pass * digit_bits;
        uint32_t *next = counts[pass], sum = 0;
        if (next[from[0] >> shift & mask] == (uint64_t)n) continue; // all have the same digit
        for (uint32_t d = 0; d <= mask; ++d) {
            const uint32_t own = next[d];
            next[d] = sum;
            sum += own;
        }
        for (int64_t i = 0; i < n; ++i)
            to[next[from[i] >> shift & mask]++] = from[i];
        uint64_t *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != words) memcpy(words, from, (size_t)n * sizeof *words);
}

// ---- All words ----------------------------------------------------------------------------------

typedef struct word_pass {
    const uint64_t *from;
    uint64_t *to;
    int32_t *counts; // [part][2^bits]
    int shift, bits;
    int low;
    const int32_t *ends; // of buckets
} word_pass;

static void count_words(const void *pass, int64_t part, int64_t begin, int64_t end)
{
    const word_pass *p = (const word_pass *)pass;
    const uint64_t mask = ((uint64_t)1 << p->bits) - 1;
    int32_t *counts = p->counts + (part << p->bits);
    memset(counts, 0, sizeof *counts << p->bits);
    for (int64_t i = begin; i < end; ++i)
        ++counts[p->from[i] >> p->shift & mask];
}

static void move_words(const void *pass, int64_t part, int64_t begin, int64_t end)
{
    const word_pass *p = (const word_pass *)pass;
    const uint64_t mask = ((uint64_t)1 << p->bits) - 1;
    int32_t *next = p->counts + (part << p->bits);
    for (int64_t i = begin; i < end; ++i)
        p->to[next[p->from[i] >> p->shift & mask]++] = p->from[i];
}

static void sort_buckets(const void *pass, int64_t begin, int64_t end)
{
    const word_pass *p = (const word_pass *)pass;
    for (int64_t b = begin; b < end; ++b) {
        const int32_t first = b > 0 ? p->ends[b - 1] : 0;
        // `from` has been read, and is where the bucket is sorted by way of.
        sort_bucket(p->to + first, (uint64_t *)(uintptr_t)p->from + first, p->ends[b] - first,
                    p->low, p->shift);
    }
}

// The largest bucket, once counts are summed up over the parts.
static int32_t largest_bucket(const word_pass *p, int num_parts)
{
    int32_t largest = 0;
    for (int64_t b = 0; b < (int64_t)1 << p->bits; ++b) {
        int32_t sum = 0;
        for (int part = 0; part < num_parts; ++part)
            sum += p->counts[((int64_t)part << p->bits) + b];
        largest = sum > largest ? sum : largest;
    }
    return largest;
}

// Digit by digit from the lowest.
static uint64_t *sort_by_digits(spops_team team, int64_t n, int low, int high, word_pass *p)
{
    const int num_parts = spops_team_parts(team, SKEWED_PARTS);
    uint64_t *words = (uint64_t *)(uintptr_t)p->from, *to = p->to;
    for (p->shift = low; p->shift < high; p->shift += p->bits) {
        p->bits = high - p->shift < SKEWED_DIGIT_BITS ? high - p->shift : SKEWED_DIGIT_BITS;
        p->from = words;
        p->to = to;
        spops_parallel_parts(team, num_parts, n, count_words, p);
        if (!spops_radix_scan(p->counts, num_parts, (int64_t)1 << p->bits, n)) continue;
        spops_parallel_parts(team, num_parts, n, move_words, p);
        to = words;
        words = p->to;
    }
    return words;
}

uint64_t *spops_word_sort(spops_team team, int64_t n, int low, int high, uint64_t *words,
                          uint64_t *spare, int32_t *counts)
{
    const int num_parts = parts_of(team, n), bits = bucket_bits(n);
    word_pass p = {words, spare, counts, 0, 0, low, NULL};

    if (bits == 0) {
        sort_bucket(words, spare, n, low, high);
        return words;
    }
    p.bits = high - low < bits ? high - low : bits;
    p.shift = high - p.bits;
    spops_parallel_parts(team, num_parts, n, count_words, &p);
    if (team.size > 1 && n >= SKEWED_WORDS && largest_bucket(&p, num_parts) > n / 4)
        return sort_by_digits(team, n, low, high, &p);
    if (!spops_radix_scan(counts, num_parts, (int64_t)1 << p.bits, n)) {
        sort_bucket(words, spare, n, low, p.shift);
        return words;
    }
    spops_parallel_parts(team, num_parts, n, move_words, &p);
    // The last part has put its last word of a bucket where the bucket ends.
    p.ends = counts + ((int64_t)(num_parts - 1) << p.bits);
    spops_parallel_for(team, (int64_t)1 << p.bits, 0, sort_buckets, &p);
    return spare;
}
