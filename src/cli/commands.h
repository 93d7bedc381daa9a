/* The subcommands. Each takes its parsed options and returns the exit status, having said what it had to say. */
#ifndef RINGATTN_COMMANDS_H
#define RINGATTN_COMMANDS_H

#include "options.h"

int command_attend(const options *o);
int command_verify(const options *o);
int command_bench(const options *o);
int command_info(const options *o);

#endif
