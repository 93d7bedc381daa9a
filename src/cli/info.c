/* ringattn info: the library's own account of its features, and the machine. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "commands.h"
#include "matrix.h"
#include "plugins.h"
#include "report.h"

/* The text after the colon of the first line of a /proc file that begins with key. */
static void proc_line(const char *path, const char *key, char *value, size_t n) {
    char line[512];
    FILE *file = fopen(path, "r");
    snprintf(value, n, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, n, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (file)
        fclose(file);
}

/* ra_features gives "name: value" lines; every one of them becomes a key. */
static int add_features(json_t *object, failure *f) {
    size_t n = ra_features(NULL, 0) + 1;
    char *text = malloc(n);
    if (!text)
        return fail_memory(f, (int64_t)n, "the list of features");
    ra_features(text, n);
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        *colon = 0;
        json_object_set_new(object, line, json_string(colon + 1 + strspn(colon + 1, " ")));
    }
    free(text);
    return 0;
}

static void add_machine(json_t *object) {
    char model[256], memory[64];
    struct utsname system;
    proc_line("/proc/cpuinfo", "model name", model, sizeof model);
    proc_line("/proc/meminfo", "MemTotal", memory, sizeof memory);
    json_object_set_new(object, "isa", json_string(ra_isa()));
    json_object_set_new(object, "cpu", json_string(model));
    json_object_set_new(object, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(object, "memory_bytes", json_integer(strtoll(memory, NULL, 10) * 1024));
    if (uname(&system) == 0)
        json_object_set_new(object, "machine", json_sprintf("%s %s %s", system.sysname, system.release, system.machine));
}

static void print_lines(json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (json_is_integer(value))
            printf("%s: %" JSON_INTEGER_FORMAT "\n", key, json_integer_value(value));
        else if (json_is_array(value))
            plugins_print(value);
        else
            printf("%s: %s\n", key, json_string_value(value));
    }
}

int command_info(const options *o) {
    failure f = {0};
    if (o->operand_count) {
        fail(&f, EXIT_USAGE, "info takes no argument, but there is %s", o->operands[0]);
        return failure_print(&f);
    }
    if (o->matrix && !o->json) {
        matrix_print();
        return 0;
    }
    json_t *object = json_object();
    if (object && o->matrix)
        json_object_set_new(object, "matrix", matrix_json());
    if (!object)
        fail_memory(&f, 0, "the report");
    else if (add_features(object, &f) == 0) {
        add_machine(object);
        if (!o->matrix) /* they have nothing to do with it, and may take their time */
            json_object_set_new(object, "pjrt", plugins_json(&f));
    }
    if (!f.status && o->json)
        report_json(object, &f);
    else if (!f.status)
        print_lines(object);
    if (!o->json || f.status)
        json_decref(object);
    return f.status ? failure_print(&f) : 0;
}
