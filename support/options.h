// SPDX-License-Identifier: Apache-2.0
// Options of a command as rows of tables. The command line (by argp), the help text, the manual page
// and the shell's completion are all made from the same rows.
#ifndef SPOPS_SUPPORT_OPTIONS_H
#define SPOPS_SUPPORT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "spops/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct option_row {
    const char *name;  // such as "--maps"; NULL ends a table
    const char *value; // for the help; "LIST": items separated by commas; NULL: a switch
    const char *help;
    const char *choices;               // what an item may be, separated by commas; or
    bool (*accepts)(const char *item); // whether it may be that; or both NULL: anything
    // Where the value goes: one of them. What is not given stays as it was.
    bool *on;
    const char **text;
    int64_t *number; // from `least` to `most`
    double *reals;   // from `least` to `most` of them, finite and separated by commas
    int64_t least, most;
    spops_backend_kind *backend;
    spops_dtype *dtype;
} option_row;

// Rows of common options.
#define OPTION_BACKEND(to)                                                                         \
    {                                                                                              \
        "--backend", "NAME", "auto (CUDA where there is a device), cpu or cuda; default: auto",    \
            "auto,cpu,cuda", .backend = (to)                                                       \
    }
#define OPTION_JSON(to)                                                                            \
    {                                                                                              \
        "--json", NULL, "one JSON object on one line instead of text", .on = (to)                  \
    }

typedef struct option_group {
    const char *title; // NULL ends a list of groups
    const option_row *rows;
} option_group;

typedef struct option_set {
    const char *program; // such as "spops plan"
    const char *summary; // one line
    const char *operand; // for the usage, such as "[FILE]"; NULL: there is none
    const char **file;   // where the operand goes
    const char **second; // and a second one; NULL: there is none
    const char *about;   // paragraphs before the rows; a line that begins with a space stays a line
    const char *more;    // paragraphs after them, or NULL
    const option_row *rows;
    const option_group *groups; // or NULL
} option_set;

typedef enum options_result {
    OPTIONS_READ = 0,   // go on
    OPTIONS_HELPED = 1, // --help or --usage was answered on stdout
    OPTIONS_WRONG = 2   // a message is on stderr
} options_result;

// Read argv, whose first element is passed over. argv keeps its order.
options_result options_read(const option_set *o, int argc, char **argv);

// Say on stderr what is wrong with the options, and where help is. Returns OPTIONS_WRONG.
__attribute__((format(printf, 2, 3))) options_result options_error(const option_set *o,
                                                                   const char *format, ...);

// True if `name` is in the comma-separated `list`, or list is NULL.
bool options_wants(const char *list, const char *name);

// Item i of a comma-separated list; false after the last and for one that does not fit.
bool options_item(const char *list, int i, char item[64]);

bool options_read_number(const char *item, int64_t least, int64_t most, int64_t *number);

// A page of the manual (man 1) and a completion for bash. The first of `commands` is the program
// itself; the name of each other is its `program` after the space.
void options_write_manual(const option_set *const *commands, int num_commands, FILE *f);
void options_write_completion(const option_set *const *commands, int num_commands, FILE *f);

#ifdef __cplusplus
}
#endif

#endif
