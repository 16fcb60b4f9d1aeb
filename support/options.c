// SPDX-License-Identifier: Apache-2.0
#include "support/options.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "support/elements.h"

enum { MAX_ROWS = 96, KEY_FIRST = 0x100, KEY_HELP = 'h', KEY_USAGE = 0x10000 };

// ---- Lists and numbers --------------------------------------------------------------------------

bool options_item(const char *list, int i, char item[64])
{
    for (; i > 0; --i) {
        list += strcspn(list, ",");
        if (*list == '\0') return false;
        ++list;
    }
    const size_t length = strcspn(list, ",");
    if (length == 0 || length >= 64) return false;
    memcpy(item, list, length);
    item[length] = '\0';
    return true;
}

bool options_wants(const char *list, const char *name)
{
    char item[64];
    if (list == NULL) return true;
    for (int i = 0; options_item(list, i, item); ++i)
        if (strcmp(item, name) == 0) return true;
    return false;
}

bool options_read_number(const char *item, int64_t least, int64_t most, int64_t *number)
{
    char *end;
    errno = 0;
    const long long parsed = strtoll(item, &end, 10);
    if (errno != 0 || end == item || *end != '\0' || parsed < least || parsed > most) return false;
    *number = parsed;
    return true;
}

static bool read_reals(const option_row *row, const char *text)
{
    double values[16];
    int64_t count = 0;
    for (const char *at = text;; ++at) {
        char *end;
        if (count == row->most || count == 16) return false;
        values[count] = strtod(at, &end);
        if (end == at || !isfinite(values[count])) return false;
        ++count;
        at = end;
        if (*at == '\0') break;
        if (*at != ',') return false;
    }
    if (count < row->least) return false;
    memcpy(row->reals, values, (size_t)count * sizeof *values);
    return true;
}

// ---- One row ------------------------------------------------------------------------------------

static bool accepts(const option_row *row, const char *item)
{
    if (row->choices != NULL) return options_wants(row->choices, item);
    return row->accepts == NULL || row->accepts(item);
}

static bool accepts_text(const option_row *row, const char *value)
{
    char item[64];
    size_t length = 0;
    if (strcmp(row->value, "LIST") != 0) return accepts(row, value);
    for (int i = 0; options_item(value, i, item) && accepts(row, item); ++i)
        length += strlen(item) + 1;
    return length == strlen(value) + 1; // every item was one
}

static bool take_value(const option_row *row, const char *value)
{
    static const char *const backends[] = {"auto", "cpu", "cuda"};
    if (row->number != NULL) return options_read_number(value, row->least, row->most, row->number);
    if (row->reals != NULL) return read_reals(row, value);
    if (row->dtype != NULL) {
        if (!accepts(row, value)) return false;
        if (strcmp(value, "i8") != 0) return elements_find(value, row->dtype);
        *row->dtype = SPOPS_DTYPE_I8;
        return true;
    }
    if (row->text != NULL && accepts_text(row, value)) {
        *row->text = value;
        return true;
    }
    for (int i = 0; row->backend != NULL && i < 3; ++i)
        if (strcmp(value, backends[i]) == 0) {
            *row->backend = (spops_backend_kind)i;
            return true;
        }
    return false;
}

static void explain_value(const option_row *row, const char *value, struct argp_state *state)
{
    if (row->number != NULL)
        argp_error(state, "%s is '%s', expected a number from %lld to %lld", row->name, value,
                   (long long)row->least, (long long)row->most);
    else if (row->reals != NULL)
        argp_error(state, "%s is '%s', expected %s", row->name, value, row->value);
    else if (row->choices != NULL)
        argp_error(state, "%s is '%s', expected %s%s", row->name, value,
                   strcmp(row->value, "LIST") == 0 ? "some of " : "one of ", row->choices);
    else
        argp_error(state, "%s does not take '%s'", row->name, value);
}

// ---- argp ---------------------------------------------------------------------------------------

typedef struct reading {
    const option_set *o;
    const option_row *rows[MAX_ROWS]; // by key
    struct argp_option entries[2 * MAX_ROWS];
    int num_rows, num_entries, group;
    bool helped;
    struct argp argp;
} reading;

static error_t take(int key, char *value, struct argp_state *state)
{
    reading *r = state->input;
    if (key == KEY_HELP || key == KEY_USAGE) {
        argp_state_help(state, stdout,
                        key == KEY_HELP ? ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC
                                        : ARGP_HELP_USAGE);
        r->helped = true;
        return ECANCELED; // what follows is not looked at
    }
    if (key == ARGP_KEY_ARG) {
        if (r->o->file == NULL) {
            argp_error(state, "unknown argument '%s'", value);
            return EINVAL;
        }
        if (*r->o->file != NULL && r->o->second != NULL && *r->o->second == NULL) {
            *r->o->second = value;
            return 0;
        }
        if (*r->o->file != NULL) {
            argp_error(state, "'%s' is one too many: %s is '%s'", value, r->o->operand,
                       *r->o->file);
            return EINVAL;
        }
        *r->o->file = value;
        return 0;
    }
    if (key < KEY_FIRST || key >= KEY_FIRST + r->num_rows) return ARGP_ERR_UNKNOWN;
    // Two groups may have an option of one name: it is for both.
    const char *name = r->rows[key - KEY_FIRST]->name;
    for (int i = 0; i < r->num_rows; ++i) {
        const option_row *row = r->rows[i];
        if (strcmp(row->name, name) != 0) continue;
        if (row->value == NULL)
            *row->on = true;
        else if (!take_value(row, value)) {
            explain_value(row, value, state);
            return EINVAL;
        }
    }
    return 0;
}

// Without groups each row is one of its own, since argp sorts the rows of a group by name.
static void add_rows(reading *r, const option_row *rows, const char *title)
{
    ++r->group;
    if (title != NULL)
        r->entries[r->num_entries++] = (struct argp_option){.doc = title, .group = r->group};
    for (; rows != NULL && rows->name != NULL && r->num_rows < MAX_ROWS; ++rows) {
        r->entries[r->num_entries++] = (struct argp_option){
            rows->name + 2, KEY_FIRST + r->num_rows, rows->value, 0, rows->help, r->group};
        r->rows[r->num_rows++] = rows;
        if (r->o->groups == NULL) ++r->group;
    }
}

static reading *start_reading(const option_set *o, char *text, size_t bytes)
{
    reading *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->o = o;
    add_rows(r, o->rows, NULL);
    for (const option_group *g = o->groups; g != NULL && g->title != NULL; ++g)
        add_rows(r, g->rows, g->title);
    r->entries[r->num_entries++] =
        (struct argp_option){"help", KEY_HELP, NULL, 0, "this text", ++r->group};
    r->entries[r->num_entries++] =
        (struct argp_option){"usage", KEY_USAGE, NULL, 0, "a short usage message", r->group};
    snprintf(text, bytes, "%s%s%s", o->about, o->more != NULL ? "\v" : "",
             o->more != NULL ? o->more : "");
    r->argp = (struct argp){r->entries, take, o->operand, text, NULL, NULL, NULL};
    return r;
}

options_result options_read(const option_set *o, int argc, char **argv)
{
    char text[8192], name[64];
    reading *r = start_reading(o, text, sizeof text);
    char **copy = calloc((size_t)argc + 2, sizeof *copy); // argp moves operands to the end
    if (r == NULL || copy == NULL) {
        free(r);
        free(copy);
        return options_error(o, "no memory for the options");
    }
    snprintf(name, sizeof name, "%s", o->program);
    copy[0] = name;
    for (int i = 1; i < argc; ++i)
        copy[i] = argv[i];
    const error_t status =
        argp_parse(&r->argp, argc > 0 ? argc : 1, copy, ARGP_NO_EXIT | ARGP_NO_HELP, NULL, r);
    const bool helped = r->helped;
    free(r);
    free(copy);
    return helped ? OPTIONS_HELPED : status != 0 ? OPTIONS_WRONG : OPTIONS_READ;
}

options_result options_error(const option_set *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", o->program);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry `%s --help' or `%s --usage' for more information.\n", o->program,
            o->program);
    return OPTIONS_WRONG;
}

// ---- The manual ---------------------------------------------------------------------------------

// Text as roff takes it; `first`: a control character may not begin a line.
static void write_roff(FILE *f, const char *text)
{
    bool line_begins = true;
    for (; *text != '\0'; ++text) {
        if (line_begins && (*text == '.' || *text == '\'')) fputs("\\&", f);
        line_begins = *text == '\n';
        if (*text == '\\')
            fputs("\\e", f);
        else if (*text == '-')
            fputs("\\-", f);
        else
            fputc(*text, f);
    }
}

// Paragraphs; lines that begin with a space stay lines.
static void write_paragraphs(FILE *f, const char *text)
{
    bool verbatim = false;
    while (text != NULL && *text != '\0') {
        char line[1024];
        const size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        text += length + (text[length] == '\n');
        if ((line[0] == ' ') != verbatim) {
            fputs(verbatim ? ".fi\n" : ".nf\n", f);
            verbatim = !verbatim;
        }
        if (line[0] == '\0')
            fputs(".PP", f);
        else
            write_roff(f, line);
        fputc('\n', f);
    }
    if (verbatim) fputs(".fi\n", f);
}

static void write_manual_rows(FILE *f, const option_row *rows)
{
    for (; rows != NULL && rows->name != NULL; ++rows) {
        fputs(".TP\n\\fB", f);
        write_roff(f, rows->name);
        fputs("\\fR", f);
        if (rows->value != NULL) fprintf(f, "=\\fI%s\\fR", rows->value);
        fputc('\n', f);
        write_roff(f, rows->help);
        fputc('\n', f);
    }
}

void options_write_manual(const option_set *const *commands, int num_commands, FILE *f)
{
    fprintf(f, ".TH SPOPS 1 \"\" \"spops %d.%d.%d\" \"User Commands\"\n.SH NAME\n",
            SPOPS_VERSION_MAJOR, SPOPS_VERSION_MINOR, SPOPS_VERSION_PATCH);
    fputs("spops \\- ", f);
    write_roff(f, commands[0]->summary);
    fputs("\n.SH SYNOPSIS\n", f);
    for (int i = 1; i < num_commands; ++i)
        fprintf(f, "%s\\fB%s\\fR [\\fIOPTION\\fR...] %s\n", i > 1 ? ".br\n" : "",
                commands[i]->program, commands[i]->operand != NULL ? commands[i]->operand : "");
    fputs(".SH DESCRIPTION\n", f);
    write_paragraphs(f, commands[0]->about);
    fputs(".PP\nEvery command takes \\fB\\-\\-help\\fR and \\fB\\-\\-usage\\fR.\n", f);
    for (int i = 1; i < num_commands; ++i) {
        const option_set *o = commands[i];
        fprintf(f, ".SH %s\n", o->program);
        write_paragraphs(f, o->about);
        write_manual_rows(f, o->rows);
        for (const option_group *g = o->groups; g != NULL && g->title != NULL; ++g) {
            if (g->rows == NULL) continue;
            fputs(".SS ", f);
            write_roff(f, g->title);
            fputc('\n', f);
            write_manual_rows(f, g->rows);
        }
        if (o->more != NULL) {
            fputs(".PP\n", f);
            write_paragraphs(f, o->more);
        }
    }
    fputs(".SH EXIT STATUS\n0: done. 1: something failed, or a result was wrong. 2: the arguments "
          "make no sense.\n",
          f);
}

// ---- The shell's completion ---------------------------------------------------------------------

static const char *command_name(const option_set *o)
{
    const char *space = strchr(o->program, ' ');
    return space != NULL ? space + 1 : o->program;
}

static void write_names(FILE *f, const option_row *rows)
{
    for (; rows != NULL && rows->name != NULL; ++rows)
        fprintf(f, " %s", rows->name);
}

// What may follow an option: its choices (for a list, one of them), else a file.
static void write_choices(FILE *f, const char *command, const option_row *rows)
{
    for (; rows != NULL && rows->name != NULL; ++rows) {
        if (rows->choices == NULL) continue;
        fprintf(f, "    %s:%s) words=\"", command, rows->name);
        for (const char *c = rows->choices; *c != '\0'; ++c)
            fputc(*c == ',' ? ' ' : *c, f);
        fputs("\" ;;\n", f);
    }
}

void options_write_completion(const option_set *const *commands, int num_commands, FILE *f)
{
    fputs("# Completion of spops for bash; made from the options themselves.\n"
          "_spops()\n{\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
          "    if [ \"$word\" = \"=\" ]; then word=; fi\n"
          "    if [ \"$before\" = \"=\" ]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"help --help --version",
          f);
    for (int i = 1; i < num_commands; ++i)
        fprintf(f, " %s", command_name(commands[i]));
    fputs("\" -- \"$word\"))\n        return\n    fi\n    case ${COMP_WORDS[1]}:$before in\n", f);
    for (int i = 1; i < num_commands; ++i) {
        write_choices(f, command_name(commands[i]), commands[i]->rows);
        for (const option_group *g = commands[i]->groups; g != NULL && g->title != NULL; ++g)
            write_choices(f, command_name(commands[i]), g->rows);
    }
    fputs(
        "    esac\n    if [ -n \"$words\" ]; then\n"
        "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n        return\n    fi\n"
        "    case $word in\n    -*) ;;\n    *) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
        "    esac\n    case ${COMP_WORDS[1]} in\n",
        f);
    for (int i = 1; i < num_commands; ++i) {
        fprintf(f, "    %s) words=\"--help --usage", command_name(commands[i]));
        write_names(f, commands[i]->rows);
        for (const option_group *g = commands[i]->groups; g != NULL && g->title != NULL; ++g)
            write_names(f, g->rows);
        fputs("\" ;;\n", f);
    }
    fputs("    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
          "complete -o filenames -F _spops spops\n",
          f);
}
