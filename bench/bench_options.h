// Options as rows of tables: the command line and the help text are read from the same row.
#ifndef SPOPS_BENCH_OPTIONS_H
#define SPOPS_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "spops/types.h"

typedef struct bench_option {
    const char *name;  // such as "--maps"; NULL ends a table
    const char *value; // for the help; "LIST": items separated by commas; NULL: a switch
    const char *help;
    const char *choices;               // what an item may be, separated by commas; or
    bool (*accepts)(const char *item); // whether it may be that; or both NULL: anything
    // Where the value goes: one of them.
    bool *on;
    const char **text;
    int *number; // from 1 to `most`
    int most;
} bench_option;

// Set what the rows of a table point to back to nothing.
void bench_options_clear(const bench_option *options);
// Read argv[0], and argv[1] where the option takes a value and argc says that there is one. Returns
// how many were read; 0 where the table has no such option; -1 with a line on stderr, which begins
// with `program`, where the value makes no sense.
int bench_options_read(const bench_option *options, const char *program, int argc, char **argv);
// A line a row; `suite` goes before each help text, unless it is NULL.
void bench_options_help(const bench_option *options, const char *suite, FILE *f);

// True if `name` is in the comma-separated `list`, or list is NULL.
bool bench_wants(const char *list, const char *name);

// Item i of a comma-separated list; false behind the last and for one that does not fit.
bool bench_item(const char *list, int i, char item[64]);

// Readers of items. A dtype is any of floats; f4e2m1 with its block scales is called nvfp4.
bool bench_is_dtype(const char *item);
bool bench_read_dtype(const char *item, spops_dtype *dtype);
bool bench_is_width(const char *item);
bool bench_read_number(const char *item, int64_t most, int64_t *number);

#endif
