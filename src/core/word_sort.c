// SPDX-License-Identifier: Apache-2.0
// Two passes through memory, then the caches: words are divided into buckets of a thousand or two,
// each of which fits the first-level cache and is sorted by one thread. A bucket is a range of cells,
// which are words that agree in their highest bits: points lie densely in few cells, so that a bucket
// for every so many bits would hold half of them.
#include "core/word_sort.h"

#include <stdbool.h>
#include <string.h>

#include "core/prefetch.h"
#include "core/radix_sort.h"

#define BUCKET_WORDS 1024
#define CELL_BITS    11
#define NUM_CELLS    (1 << CELL_BITS)
#define MAX_PARTS    32
#define DIGIT_BITS   9 // of a bucket's sort
#define MAX_PASSES   8 // of DIGIT_BITS in 64
#define INSERTED     24
#define LINE_WORDS   8    // of the cache
#define LARGE_WORDS  8192 // of a cell that is divided into buckets itself; by all threads, if it
#define LARGE_SHARE  4    // has one in so many of the words

// Counters of the parts together are few beside the words: one thread adds them up, and a helper that
// waits for longer than that falls asleep.
#define WORDS_A_PART (4 * NUM_CELLS)

static int parts_of(spops_team team, int64_t n)
{
    const int64_t most = n / WORDS_A_PART;
    const int parts = spops_team_parts(team, MAX_PARTS);
    return most < 1 ? 1 : most < parts ? (int)most : parts;
}

size_t spops_word_counts(int64_t max_words)
{
    const int64_t most = max_words / WORDS_A_PART;
    if (max_words < 2 * BUCKET_WORDS) return 0; // one bucket
    return (size_t)(most < 1 ? 1 : most < MAX_PARTS ? most : MAX_PARTS) << CELL_BITS;
}

// ---- A bucket -----------------------------------------------------------------------------------

static void insert_all(uint64_t *words, int64_t n, uint64_t base, uint64_t mask)
{
    for (int64_t i = 1; i < n; ++i) {
        const uint64_t word = words[i], key = (word - base) & mask;
        int64_t at = i;
        for (; at > 0 && ((words[at - 1] - base) & mask) > key; --at)
            words[at] = words[at - 1];
        words[at] = word;
    }
}

// By bits low .. high - 1 of what words are above base, the result in words.
static void sort_bucket(uint64_t *words, uint64_t *spare, int64_t n, uint64_t base, int low,
                        int high)
{
    const int bits = high - low;
    const int num_passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
    const int digit_bits = num_passes > 0 ? (bits + num_passes - 1) / num_passes : 0;
    const uint32_t mask = ((uint32_t)1 << digit_bits) - 1;
    uint32_t counts[MAX_PASSES][1 << DIGIT_BITS];
    uint64_t *from = words, *to = spare;

    if (n < 2 || bits == 0) return;
    if (n <= INSERTED) {
        insert_all(words, n, base, (bits < 64 ? ((uint64_t)1 << bits) - 1 : ~(uint64_t)0) << low);
        return;
    }
    for (int pass = 0; pass < num_passes; ++pass)
        memset(counts[pass], 0, ((size_t)mask + 1) * sizeof **counts);
    for (int64_t i = 0; i < n; ++i) {
        uint64_t rest = (words[i] - base) >> low;
        for (int pass = 0; pass < num_passes; ++pass, rest >>= digit_bits)
            ++counts[pass][rest & mask];
    }
    for (int pass = 0; pass < num_passes; ++pass) {
        const int shift = low + pass * digit_bits;
        uint32_t *next = counts[pass], sum = 0;
        if (next[(from[0] - base) >> shift & mask] == (uint64_t)n)
            continue; // all have the same digit
        for (uint32_t d = 0; d <= mask; ++d) {
            const uint32_t own = next[d];
            next[d] = sum;
            sum += own;
        }
        for (int64_t i = 0; i < n; ++i)
            to[next[(from[i] - base) >> shift & mask]++] = from[i];
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
    int shift, bits; // of cells
    int low;
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

// ---- Buckets of cells ---------------------------------------------------------------------------

typedef struct cell_pass {
    word_pass words; // its counts become those of buckets
    spops_team team;
    int64_t n;
    int num_parts, num_buckets;
    uint16_t bucket_of[NUM_CELLS], first_cell[NUM_CELLS + 1];
} cell_pass;

// Make buckets of cells, one or several that follow each other; returns how many words the largest
// cell has.
static int64_t make_buckets(cell_pass *p)
{
    const int64_t num_cells = (int64_t)1 << p->words.bits;
    int32_t cells[NUM_CELLS] = {0};
    int64_t largest = 0, sum = 0;
    p->num_buckets = 0;
    for (int part = 0; part < p->num_parts; ++part)
        for (int64_t cell = 0; cell < num_cells; ++cell)
            cells[cell] += p->words.counts[((int64_t)part << p->words.bits) + cell];
    for (int64_t cell = 0; cell < num_cells; ++cell) {
        const int64_t own = cells[cell];
        largest = own > largest ? own : largest;
        if (p->num_buckets == 0 || sum >= BUCKET_WORDS || sum + own > 2 * BUCKET_WORDS) {
            p->first_cell[p->num_buckets++] = (uint16_t)cell;
            sum = 0;
        }
        sum += own;
        p->bucket_of[cell] = (uint16_t)(p->num_buckets - 1);
    }
    p->first_cell[p->num_buckets] = (uint16_t)num_cells;
    return largest;
}

// Counts of cells become where each part puts its first word of each bucket. (A bucket's number is at
// most that of its cells.)
static void place_buckets(const cell_pass *p)
{
    int32_t sum = 0;
    for (int part = 0; part < p->num_parts; ++part) {
        int32_t *counts = p->words.counts + ((int64_t)part << p->words.bits);
        for (int bucket = 0; bucket < p->num_buckets; ++bucket) {
            int32_t own = 0;
            for (int cell = p->first_cell[bucket]; cell < p->first_cell[bucket + 1]; ++cell)
                own += counts[cell];
            counts[bucket] = own;
        }
    }
    for (int bucket = 0; bucket < p->num_buckets; ++bucket)
        for (int part = 0; part < p->num_parts; ++part) {
            int32_t *count = &p->words.counts[((int64_t)part << p->words.bits) + bucket];
            const int32_t own = *count;
            *count = sum;
            sum += own;
        }
}

static void move_to_buckets(const void *pass, int64_t part, int64_t begin, int64_t end)
{
    const cell_pass *p = (const cell_pass *)pass;
    const uint64_t *from = p->words.from, mask = ((uint64_t)1 << p->words.bits) - 1;
    uint64_t *to = p->words.to;
    int32_t *next = p->words.counts + (part << p->words.bits);
    for (int64_t i = begin; i < end; ++i) {
        uint64_t *place = to + next[p->bucket_of[from[i] >> p->words.shift & mask]]++;
        *place = from[i];
        spops_fetch_to_write(place + LINE_WORDS);
    }
}

typedef struct copy_work {
    uint64_t *to;
    const uint64_t *from;
} copy_work;

static void copy_words(const void *work, int64_t begin, int64_t end)
{
    const copy_work *w = (const copy_work *)work;
    memcpy(w->to + begin, w->from + begin, (size_t)(end - begin) * sizeof *w->to);
}

// Whether all threads together sort what a cell of so many words has.
static bool is_shared(const cell_pass *p, int64_t num_words)
{
    return p->team.size > 1 && num_words > LARGE_WORDS && num_words > p->n / LARGE_SHARE;
}

// Words of a cell in the same way, by the bits below the cell's; the result in words.
static void sort_cell(spops_team team, int64_t n, int low, int high, uint64_t *words,
                      uint64_t *spare, int32_t *counts)
{
    const uint64_t *sorted = spops_word_sort(team, n, low, high, words, spare, counts);
    const copy_work work = {words, sorted};
    if (sorted != words) spops_parallel_for(team, n, 0, copy_words, &work);
}

static void sort_buckets(const void *pass, int64_t begin, int64_t end)
{
    const spops_team alone = {NULL, 1};
    const cell_pass *p = (const cell_pass *)pass;
    // The last part has put its last word of a bucket where the bucket ends.
    const int32_t *ends = p->words.counts + ((int64_t)(p->num_parts - 1) << p->words.bits);
    for (int64_t b = begin; b < end; ++b) {
        const int32_t first = b > 0 ? ends[b - 1] : 0, n = ends[b] - first;
        const int num_cells = p->first_cell[b + 1] - p->first_cell[b];
        const int high = p->words.shift + spops_bits_below(num_cells);
        uint64_t *words = p->words.to + first;
        // `from` has been read, and is where the bucket is sorted by way of.
        uint64_t *spare = (uint64_t *)(uintptr_t)p->words.from + first;
        if (is_shared(p, n)) continue;
        if (n > LARGE_WORDS && high - p->words.low > 2 * DIGIT_BITS) { // of one cell
            int32_t counts[NUM_CELLS];
            sort_cell(alone, n, p->words.low, high, words, spare, counts);
        } else {
            sort_bucket(words, spare, n, (uint64_t)p->first_cell[b] << p->words.shift, p->words.low,
                        high);
        }
    }
}

uint64_t *spops_word_sort(spops_team team, int64_t n, int low, int high, uint64_t *words,
                          uint64_t *spare, int32_t *counts)
{
    int32_t shared[LARGE_SHARE][2]; // where a bucket begins and ends
    int num_shared = 0;
    cell_pass p;

    p.team = team;
    p.n = n;
    p.num_parts = parts_of(team, n);
    do { // as long as all words agree
        if (n < 2 * BUCKET_WORDS || low == high) {
            sort_bucket(words, spare, n, 0, low, high);
            return words;
        }
        p.words = (word_pass){words, spare, counts, 0, 0, low};
        p.words.bits = high - low < CELL_BITS ? high - low : CELL_BITS;
        p.words.shift = high - p.words.bits;
        spops_parallel_parts(team, p.num_parts, n, count_words, &p.words);
        high = p.words.shift;
    } while (make_buckets(&p) == n);
    place_buckets(&p);
    spops_parallel_parts(team, p.num_parts, n, move_to_buckets, &p);
    spops_parallel_for(team, p.num_buckets, 1, sort_buckets, &p);
    for (int b = 0; b < p.num_buckets; ++b) {
        const int32_t *ends = counts + ((int64_t)(p.num_parts - 1) << p.words.bits);
        const int32_t first = b > 0 ? ends[b - 1] : 0;
        if (!is_shared(&p, ends[b] - first)) continue;
        shared[num_shared][0] = first;
        shared[num_shared++][1] = ends[b];
    }
    for (int i = 0; i < num_shared; ++i)
        sort_cell(team, shared[i][1] - shared[i][0], low, high, spare + shared[i][0],
                  words + shared[i][0], counts);
    return spare;
}
