/* The plugin that tests run programs on; define _GNU_SOURCE first. */
#ifndef RA_TESTS_PJRT_PLUGIN_H
#define RA_TESTS_PJRT_PLUGIN_H

#include <stdio.h>
#include <string.h>

#include "check.h"

static char plugin[4096];

/* By tools/pjrt_plugins.sh, which fetches it once; where it cannot be had the test is skipped and says so. */
static void find_plugin(void) {
    char command[4096];
    const char *tools = getenv("RA_TOOLS");
    snprintf(command, sizeof command, "%s/pjrt_plugins.sh cpu", tools ? tools : "tools");
    FILE *pipe = popen(command, "r");
    if (!pipe || !fgets(plugin, sizeof plugin, pipe))
        CHECK_SKIP("tools/pjrt_plugins.sh does not run");
    plugin[strcspn(plugin, "\n")] = 0;
    if (pclose(pipe) != 0) {
        printf("%s\n", plugin);
        exit(77);
    }
}

#endif
