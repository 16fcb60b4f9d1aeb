// SPDX-License-Identifier: Apache-2.0
// Tunings of sparse convolutions: the rows checked, written as text, read. The library reads the text
// itself, without a parser of JSON, so that an engine which links nothing else can. A line is a row;
// blanks part its words.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/dtypes.h"
#include "tuning/choices.h"

#define TITLE   "spops sparseconv tuning"
#define VERSION 1

enum { LINE_BYTES = 256, WORD_BYTES = 32, ROW_WORDS = 12 };

static const char *const pass_names[] = {"forward", "grad_x", "grad_w"};
static const char *const math_names[] = {"exact", "tf32"};
static const char *const dataflow_names[] = {"auto", "fetch_on_demand", "implicit_gemm",
                                             "gather_matmul_scatter"};
static const char *const grouping_names[] = {"auto", "separate", "symmetric", "fixed", "adaptive"};

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const char *name_of(const char *const *names, int count, int value)
{
    return value >= 0 && value < count ? names[value] : "?";
}

const char *spops_dataflow_name(spops_dataflow dataflow)
{
    return name_of(dataflow_names, COUNT(dataflow_names), (int)dataflow);
}

const char *spops_grouping_name(spops_grouping grouping)
{
    return name_of(grouping_names, COUNT(grouping_names), (int)grouping);
}

// What is wrong with a row, or NULL.
static const char *fault_of(const spops_conv_choice *row)
{
    if ((unsigned)row->pass >= COUNT(pass_names)) return "pass";
    if (!spops_dtype_is_float(row->dtype)) return "dtype";
    if ((unsigned)row->math >= COUNT(math_names)) return "math";
    if (row->num_taps < 1) return "num_taps";
    if (row->in_channels < 1 || row->in_channels >= INT32_MAX) return "in_channels";
    if (row->out_channels < 1 || row->out_channels >= INT32_MAX) return "out_channels";
    if (row->num_out < 0 || row->num_out >= INT32_MAX) return "num_out";
    if (row->num_pairs < 0 || row->num_pairs >= INT32_MAX) return "num_pairs";
    if ((int)row->dataflow < 1 || (int)row->dataflow >= COUNT(dataflow_names)) return "dataflow";
    if ((unsigned)row->grouping >= COUNT(grouping_names) ||
        (row->grouping == SPOPS_GROUPING_AUTO) !=
            (row->dataflow != SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER))
        return "grouping";
    if (!(row->epsilon >= 0.0 && row->epsilon <= 1.0)) return "epsilon";
    if (row->batch_rows < 0) return "batch_rows";
    if (row->adds_first != 0) return "adds_first";
    return NULL;
}

spops_status spops_sparseconv_check_choices(spops_context *ctx, const char *call, const char *name,
                                            const spops_conv_choice *rows, const char *num_name,
                                            int64_t num_rows)
{
    SPOPS_REQUIRE(ctx, num_rows >= 0 && num_rows < INT32_MAX,
                  "%s: %s is %" PRId64 ", expected 0 to %d", call, num_name, num_rows,
                  INT32_MAX - 1);
    SPOPS_REQUIRE(ctx, rows != NULL || num_rows == 0, "%s: %s is NULL", call, name);
    SPOPS_TRY(spops_check_aligned(ctx, call, name, rows, _Alignof(spops_conv_choice)));
    for (int64_t i = 0; i < num_rows; ++i) {
        const char *fault = fault_of(&rows[i]);
        SPOPS_REQUIRE(ctx, fault == NULL, "%s: %s[%" PRId64 "].%s makes no sense", call, name, i,
                      fault);
    }
    return SPOPS_STATUS_OK;
}

// ---- Writing ------------------------------------------------------------------------------------

static int print_row(char *line, const spops_conv_choice *row)
{
    return snprintf(line, LINE_BYTES,
                    "%s %s %s %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                    " %s %s %.17g %" PRId64 "\n",
                    pass_names[row->pass], spops_dtype_name(row->dtype), math_names[row->math],
                    (int)row->num_taps, row->in_channels, row->out_channels, row->num_out,
                    row->num_pairs, spops_dataflow_name(row->dataflow),
                    spops_grouping_name(row->grouping), row->epsilon, row->batch_rows);
}

// Line `i` of a text: a head of five, the rows, an end.
enum { HEAD_LINES = 5 };
static int print_line(const spops_context *ctx, const spops_conv_choice *rows, int64_t num_rows,
                      int64_t i, char *line)
{
    switch (i) {
    case 0: return snprintf(line, LINE_BYTES, "%s %d\n", TITLE, VERSION);
    case 1: return snprintf(line, LINE_BYTES, "device %.127s\n", ctx->info.name);
    case 2: return snprintf(line, LINE_BYTES, "isa %s\n", ctx->info.isa);
    case 3:
        return snprintf(line, LINE_BYTES,
                        "# pass dtype math taps in_channels out_channels num_out "
                        "num_pairs\n");
    case 4: return snprintf(line, LINE_BYTES, "#     dataflow grouping epsilon batch_rows\n");
    default:
        if (i < HEAD_LINES + num_rows) return print_row(line, &rows[i - HEAD_LINES]);
        return snprintf(line, LINE_BYTES, "end %" PRId64 "\n", num_rows);
    }
}

spops_status spops_sparseconv_save_choices(spops_context *ctx, const spops_conv_choice *rows,
                                           int64_t num_rows, char *buffer, size_t capacity,
                                           size_t *bytes)
{
    static const char call[] = "sparseconv_save_choices";
    char line[LINE_BYTES];
    size_t used = 0;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_object(ctx, call, "bytes", bytes, _Alignof(size_t)));
    SPOPS_TRY(spops_sparseconv_check_choices(ctx, call, "rows", rows, "num_rows", num_rows));
    for (int64_t i = 0; i <= HEAD_LINES + num_rows; ++i)
        used += (size_t)print_line(ctx, rows, num_rows, i, line);
    *bytes = used;
    if (buffer == NULL) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, capacity >= used, "%s: capacity is %zu, expected at least %zu", call,
                  capacity, used);
    for (int64_t i = 0; i <= HEAD_LINES + num_rows; ++i) {
        const size_t n = (size_t)print_line(ctx, rows, num_rows, i, line);
        memcpy(buffer, line, n);
        buffer += n;
    }
    return SPOPS_STATUS_OK;
}

// ---- Reading ------------------------------------------------------------------------------------

typedef struct line_reader {
    spops_context *ctx;
    const char *call;
    const char *text;
    size_t bytes, at;
    int64_t line; // that was read last, from 1
    char now[LINE_BYTES];
} line_reader;

static spops_status corrupt(line_reader *r, const char *what)
{
    return spops_fail(r->ctx, SPOPS_STATUS_CORRUPT_DATA, "%s: line %" PRId64 ": %s", r->call,
                      r->line, what);
}

// The next line that is no comment, without its end; every line ends.
static spops_status next_line(line_reader *r)
{
    do {
        const char *from = r->text + r->at;
        const char *end = memchr(from, '\n', r->bytes - r->at);
        const size_t n = end == NULL ? 0 : (size_t)(end - from);
        ++r->line;
        if (end == NULL) return corrupt(r, "the text ends too early");
        if (n >= sizeof r->now || memchr(from, '\0', n) != NULL)
            return corrupt(r, "expected text in lines of less than 256 bytes");
        memcpy(r->now, from, n);
        r->now[n] = '\0';
        r->at += n + 1;
    } while (r->now[0] == '#');
    return SPOPS_STATUS_OK;
}

// What stands after `key` and a blank on this line; NULL: it begins with something else.
static const char *value_of(const line_reader *r, const char *key)
{
    const size_t n = strlen(key);
    return strncmp(r->now, key, n) == 0 && r->now[n] == ' ' ? r->now + n + 1 : NULL;
}

// Words parted by single blanks; false unless there are just ROW_WORDS.
static bool split(const char *line, char words[ROW_WORDS][WORD_BYTES])
{
    for (int i = 0; i < ROW_WORDS; ++i) {
        const size_t n = strcspn(line, " ");
        if (n == 0 || n >= WORD_BYTES) return false;
        memcpy(words[i], line, n);
        words[i][n] = '\0';
        line += n;
        if (*line != (i + 1 < ROW_WORDS ? ' ' : '\0')) return false;
        if (*line != '\0') ++line;
    }
    return true;
}

static bool read_name(const char *word, const char *const *names, int count, int *value)
{
    for (*value = 0; *value < count; ++*value)
        if (strcmp(word, names[*value]) == 0) return true;
    return false;
}

static bool read_number(const char *word, int64_t *value)
{
    char *end;
    *value = strspn(word, "0123456789") == strlen(word) ? strtoll(word, &end, 10) : -1;
    return *value >= 0 && *value < INT64_MAX; // where too large ones end
}

static bool read_fraction(const char *word, double *value)
{
    char *end;
    if (strspn(word, "0123456789.e-+") != strlen(word)) return false; // no hexadecimal, no names
    *value = strtod(word, &end);
    return *end == '\0' && isfinite(*value);
}

static bool read_dtype(const char *word, spops_dtype *dtype)
{
    for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_BF16; ++t)
        if (strcmp(word, spops_dtype_name((spops_dtype)t)) == 0) {
            *dtype = (spops_dtype)t;
            return true;
        }
    return false;
}

// NULL, or what is wrong.
static const char *read_row(const char *line, spops_conv_choice *row)
{
    char words[ROW_WORDS][WORD_BYTES];
    int pass, math, dataflow, grouping;
    int64_t taps;

    memset(row, 0, sizeof *row);
    if (!split(line, words)) return "expected 12 words";
    if (!read_name(words[0], pass_names, COUNT(pass_names), &pass)) return "no such pass";
    if (!read_dtype(words[1], &row->dtype)) return "no such dtype";
    if (!read_name(words[2], math_names, COUNT(math_names), &math)) return "no such math";
    if (!read_number(words[3], &taps) || taps > INT32_MAX) return "taps is no count";
    if (!read_number(words[4], &row->in_channels)) return "in_channels is no count";
    if (!read_number(words[5], &row->out_channels)) return "out_channels is no count";
    if (!read_number(words[6], &row->num_out)) return "num_out is no count";
    if (!read_number(words[7], &row->num_pairs)) return "num_pairs is no count";
    if (!read_name(words[8], dataflow_names, COUNT(dataflow_names), &dataflow))
        return "no such dataflow";
    if (!read_name(words[9], grouping_names, COUNT(grouping_names), &grouping))
        return "no such grouping";
    if (!read_fraction(words[10], &row->epsilon)) return "epsilon is no number";
    if (!read_number(words[11], &row->batch_rows)) return "batch_rows is no count";
    row->pass = (spops_conv_pass)pass;
    row->math = (spops_math)math;
    row->num_taps = (int32_t)taps;
    row->dataflow = (spops_dataflow)dataflow;
    row->grouping = (spops_grouping)grouping;
    return fault_of(row) == NULL ? NULL : "a value is out of range";
}

static spops_status read_head(line_reader *r)
{
    const spops_device_info *info = &r->ctx->info;
    char name[LINE_BYTES];
    const char *value;
    int64_t version;

    SPOPS_TRY(next_line(r));
    value = value_of(r, TITLE);
    if (value == NULL || !read_number(value, &version))
        return corrupt(r, "expected \"" TITLE "\" and a version");
    if (version != VERSION)
        return spops_fail(r->ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: version of the format is %" PRId64 ", expected %d", r->call, version,
                          VERSION);
    SPOPS_TRY(next_line(r));
    value = value_of(r, "device");
    if (value == NULL) return corrupt(r, "expected \"device\" and its name");
    snprintf(name, sizeof name, "%s", value);
    SPOPS_TRY(next_line(r));
    value = value_of(r, "isa");
    if (value == NULL) return corrupt(r, "expected \"isa\" and its name");
    if (strncmp(name, info->name, 127) == 0 && strcmp(value, info->isa) == 0)
        return SPOPS_STATUS_OK;
    return spops_fail(r->ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: the tuning is of %.80s (%.20s), expected one of %.80s (%s)", r->call,
                      name, value, info->name, info->isa);
}

// All rows; they are written where rows is not NULL, as many as max_rows.
static spops_status read_rows(line_reader *r, spops_conv_choice *rows, int64_t max_rows,
                              int64_t *num_rows)
{
    spops_conv_choice row;
    int64_t n = 0, said;
    const char *value, *fault;

    SPOPS_TRY(read_head(r));
    for (;; ++n) {
        SPOPS_TRY(next_line(r));
        value = value_of(r, "end");
        if (value != NULL) break;
        fault = read_row(r->now, &row);
        if (fault != NULL) return corrupt(r, fault);
        if (rows != NULL && n < max_rows) rows[n] = row;
    }
    if (!read_number(value, &said) || said != n)
        return corrupt(r, "the number of rows after \"end\" is another");
    if (r->at != r->bytes) return corrupt(r, "expected nothing after \"end\"");
    *num_rows = n;
    return SPOPS_STATUS_OK;
}

spops_status spops_sparseconv_load_choices(spops_context *ctx, const char *text, size_t bytes,
                                           spops_conv_choice *rows, int64_t max_rows,
                                           int64_t *num_rows)
{
    static const char call[] = "sparseconv_load_choices";
    line_reader reader = {.ctx = ctx, .call = call, .text = text, .bytes = bytes};
    int64_t found = 0;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, text != NULL, "%s: text is NULL", call);
    SPOPS_TRY(spops_check_object(ctx, call, "num_rows", num_rows, _Alignof(int64_t)));
    SPOPS_TRY(read_rows(&reader, NULL, 0, &found)); // all is checked before anything is written
    SPOPS_REQUIRE(ctx, rows == NULL || found <= max_rows,
                  "%s: max_rows is %" PRId64 ", expected at least %" PRId64, call, max_rows, found);
    reader.at = 0;
    reader.line = 0;
    return read_rows(&reader, rows, max_rows, num_rows);
}
