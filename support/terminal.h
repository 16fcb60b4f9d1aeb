// SPDX-License-Identifier: Apache-2.0
// What goes to a terminal and knows how wide it is: progress with the time left, tables, wrapped
// text. Elsewhere (a file, a pipe) there is no progress, and lines are as long as they need to be.
#ifndef SPOPS_SUPPORT_TERMINAL_H
#define SPOPS_SUPPORT_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// Columns of the terminal that f is, or of $COLUMNS where it is set; 0: no limit.
int terminal_columns(FILE *f);

// ---- Progress, on stderr where that is a terminal -----------------------------------------------

// What follows is the part from `begin` to `end` of the whole (0 to 1), which starts with 0.
void progress_stage(double begin, double end);
// `done` of `all` of this part; all 0: not known. The time left follows from the whole.
void progress_show(const char *what, int done, int all);
void progress_clear(void);
// Forget the stages; the next progress is of something else.
void progress_end(void);

// One line of at most `columns` characters, as progress_show prints it; share < 0: not known.
void progress_line(char *line, size_t bytes, int columns, double share, double elapsed_s,
                   const char *what);

// ---- Tables and text ----------------------------------------------------------------------------

enum { TABLE_MAX_ROWS = 64, TABLE_MAX_COLS = 16, TABLE_CELL_BYTES = 64 };

// The first column is flush left, the others flush right. Zeroed is empty.
typedef struct text_table {
    int num_rows, num_cols;
    int at; // the next cell's column
    char cells[TABLE_MAX_ROWS][TABLE_MAX_COLS][TABLE_CELL_BYTES];
} text_table;

__attribute__((format(printf, 2, 3))) void table_cell(text_table *t, const char *format, ...);
void table_end_row(text_table *t);
// Each line begins with `indent` spaces. Where the columns do not fit side by side, they follow each
// other in blocks that all begin with the first column. columns 0: no limit.
void table_print(const text_table *t, FILE *f, int indent, int columns);

// Text after `label`, which the first line begins with; lines that are too long go on below the text.
void wrapped_print(FILE *f, const char *label, int columns, const char *text);

#ifdef __cplusplus
}
#endif

#endif
