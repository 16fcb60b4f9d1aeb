// SPDX-License-Identifier: Apache-2.0
// Finds the command that is asked for.
#include <stdio.h>
#include <string.h>

#include "tools/command.h"
#ifdef SPOPS_WITH_BENCH
#include "bench/bench.h"
#endif

#ifdef SPOPS_WITH_BENCH
static int command_bench(int argc, char **argv)
{
    char name[] = "spops bench";
    argv[0] = name;
    return bench_main(argc, argv);
}
#define BENCH_OPTIONS NULL
#else
static const option_set no_bench_options = {
    .program = "spops bench",
    .summary = "(not in this build) benchmarks beside baselines and the floor",
    .operand = "[SUITE]",
    .about = "This build is without bench: configure it with SPOPS_BENCH=ON."};

static int command_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return command_status(options_read(&no_bench_options, argc, argv));
    return command_fail(no_bench_options.program,
                        "this build is without bench: configure it with SPOPS_BENCH=ON");
}
#define BENCH_OPTIONS &no_bench_options
#endif

typedef struct command {
    int (*run)(int argc, char **argv);
    const option_set *options; // NULL: made from the suites
} command;

static const command commands[] = {
    {command_info, &info_options}, {command_demo, &demo_options},
    {command_scan, &scan_options}, {command_voxelize, &voxelize_options},
    {command_plan, &plan_options}, {command_run, &run_options},
    {command_tune, &tune_options}, {command_bench, BENCH_OPTIONS},
};
enum { NUM_COMMANDS = sizeof commands / sizeof *commands };

static const option_set tool = {
    .program = "spops",
    .summary = "sparse gather and scatter operators for 3D perception",
    .about = "spops shows what the library libspops does on this machine. Results go to standard "
             "output, messages and progress to standard error, progress only where that is a "
             "terminal."};

static const option_set *options_of(const command *c)
{
#ifdef SPOPS_WITH_BENCH
    if (c->options == NULL) return bench_options_of("spops bench");
#endif
    return c->options;
}

static const char *name_of(const command *c)
{
    return strchr(options_of(c)->program, ' ') + 1;
}

static void print_usage(FILE *f)
{
    fputs("Usage: spops COMMAND [OPTION...]\n\n", f);
    for (const command *c = commands; c < commands + NUM_COMMANDS; ++c)
        fprintf(f, "  %-10s %s\n", name_of(c), options_of(c)->summary);
    fputs("\n`spops COMMAND --help' and `spops help COMMAND' say more about a command;\n"
          "`spops help --manual' and `spops help --completion' print the manual page and\n"
          "a completion for bash.\n",
          f);
}

static int run_named(const char *name, int argc, char **argv)
{
    for (const command *c = commands; c < commands + NUM_COMMANDS; ++c) {
        if (strcmp(name, name_of(c)) != 0) continue;
        const int status = c->run(argc, argv);
        if (fflush(stdout) != 0 && status == COMMAND_OK)
            return command_fail("spops", "standard output cannot be written");
        return status;
    }
    fprintf(stderr, "spops: unknown command '%s'\nTry `spops --help' for more information.\n",
            name);
    return COMMAND_USAGE;
}

static int command_help(int argc, char **argv)
{
    const option_set *all[NUM_COMMANDS + 1] = {&tool};
    for (int i = 0; i < NUM_COMMANDS; ++i)
        all[i + 1] = options_of(&commands[i]);
    if (argc < 2) {
        print_usage(stdout);
        return COMMAND_OK;
    }
    if (strcmp(argv[1], "--manual") == 0)
        options_write_manual(all, NUM_COMMANDS + 1, stdout);
    else if (strcmp(argv[1], "--completion") == 0)
        options_write_completion(all, NUM_COMMANDS + 1, stdout);
    else {
        char help[] = "--help";
        char *args[] = {argv[1], help, NULL};
        return run_named(argv[1], 2, args);
    }
    return COMMAND_OK;
}

int command_main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return COMMAND_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0) return command_help(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return command_help(1, argv);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("spops %s\n", spops_version());
        return COMMAND_OK;
    }
    return run_named(name, argc - 1, argv + 1);
}
