// SPDX-License-Identifier: Apache-2.0
#include "support/terminal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

int terminal_columns(FILE *f)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    const int asked = columns != NULL ? atoi(columns) : 0;
    if (asked > 0) return asked;
    if (!isatty(fileno(f)) || ioctl(fileno(f), TIOCGWINSZ, &size) != 0) return 0;
    return size.ws_col;
}

// ---- Progress -----------------------------------------------------------------------------------

static struct {
    double begin, end; // of the stage
    double start_s;    // 0: not begun
    bool is_shown;
} progress = {0.0, 1.0, 0.0, false};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_stage(double begin, double end)
{
    if (progress.start_s == 0.0 || begin == 0.0) progress.start_s = now_s();
    progress.begin = begin, progress.end = end;
}

void progress_end(void)
{
    progress_clear();
    progress.begin = 0.0, progress.end = 1.0, progress.start_s = 0.0;
}

void progress_line(char *line, size_t bytes, int columns, double share, double elapsed_s,
                   const char *what)
{
    enum { WIDTH = 24 };
    char bar[WIDTH + 1], left[48] = "";
    if (share > 1.0) share = 1.0;
    for (int i = 0; i < WIDTH; ++i)
        bar[i] = i < (int)(share * WIDTH) ? '#' : '.';
    bar[WIDTH] = '\0';
    // A guess from less than this would be no better than none.
    if (share > 0.02 && elapsed_s > 0.5)
        snprintf(left, sizeof left, "%.0f s left, ", elapsed_s / share * (1.0 - share));
    if (share < 0.0)
        snprintf(line, bytes, "%.0f s: %s", elapsed_s, what);
    else
        snprintf(line, bytes, "[%s] %s%s", bar, left, what);
    if (columns > 0 && strlen(line) >= (size_t)columns) line[columns - 1] = '\0';
}

void progress_show(const char *what, int done, int all)
{
    char line[512];
    if (!isatty(STDERR_FILENO)) return;
    if (progress.start_s == 0.0) progress.start_s = now_s();
    const double share =
        all > 0 ? progress.begin + (progress.end - progress.begin) * done / all : -1.0;
    progress_line(line, sizeof line, terminal_columns(stderr), share, now_s() - progress.start_s,
                  what);
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
    progress.is_shown = true;
}

void progress_clear(void)
{
    if (!progress.is_shown) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress.is_shown = false;
}

// ---- Tables -------------------------------------------------------------------------------------

void table_cell(text_table *t, const char *format, ...)
{
    va_list args;
    if (t->num_rows >= TABLE_MAX_ROWS || t->at >= TABLE_MAX_COLS) return;
    va_start(args, format);
    vsnprintf(t->cells[t->num_rows][t->at], TABLE_CELL_BYTES, format, args);
    va_end(args);
    ++t->at;
    if (t->at > t->num_cols) t->num_cols = t->at;
}

void table_end_row(text_table *t)
{
    if (t->num_rows < TABLE_MAX_ROWS) ++t->num_rows;
    t->at = 0;
}

void table_print(const text_table *t, FILE *f, int indent, int columns)
{
    int widths[TABLE_MAX_COLS] = {0};
    for (int r = 0; r < t->num_rows; ++r)
        for (int c = 0; c < t->num_cols; ++c) {
            const int length = (int)strlen(t->cells[r][c]);
            if (length > widths[c]) widths[c] = length;
        }
    for (int first = 1, last; first < t->num_cols || first == 1; first = last) {
        int used = indent + widths[0];
        for (last = first; last < t->num_cols; ++last) {
            used += 2 + widths[last];
            if (columns > 0 && used > columns && last > first) break;
        }
        for (int r = 0; r < t->num_rows; ++r) {
            fprintf(f, "%*s%-*s", indent, "", widths[0], t->cells[r][0]);
            for (int c = first; c < last; ++c)
                fprintf(f, "  %*s", widths[c], t->cells[r][c]);
            fputc('\n', f);
        }
        if (last == first) break; // one column only
    }
}

void wrapped_print(FILE *f, const char *label, int columns, const char *text)
{
    const int indent = (int)strlen(label);
    int at = indent;
    bool begins = true;
    fputs(label, f);
    while (*text != '\0') {
        const int length = (int)strcspn(text, " ");
        if (!begins && columns > 0 && at + 1 + length > columns) {
            fprintf(f, "\n%*s", indent, "");
            at = indent;
            begins = true;
        }
        fprintf(f, "%s%.*s", begins ? "" : " ", length, text);
        at += length + !begins;
        begins = false;
        text += length;
        if (*text == ' ') ++text;
    }
    fputc('\n', f);
}
