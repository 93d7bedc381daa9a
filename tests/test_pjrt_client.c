/* The client of PJRT plugins: files that are none, plugins that misbehave (fake_pjrt.c), what is sent and kept. Nothing here needs a real
 * plugin; test_pjrt_cpu.c has one. */
#define _GNU_SOURCE /* mkdtemp, symlink, RTLD_NOLOAD */
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "check.h"
#include "pjrt/internal.h"

static char folder[] = "/tmp/ra_pjrt_XXXXXX";

static const char *path_of(const char *name) {
    static char path[4][4200];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void write_file(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (CHECK_MSG(file != NULL, "%s cannot be written", path)) {
        CHECK(bytes == 0 || fwrite(data, bytes, 1, file) == 1);
        fclose(file);
    }
}

static char *fake;
static size_t fake_bytes;

static void read_fake(void) {
    const char *path = getenv("RA_FAKE_PJRT");
    FILE *file = path ? fopen(path, "rb") : NULL;
    struct stat status;
    if (!file || fstat(fileno(file), &status) != 0)
        CHECK_SKIP("RA_FAKE_PJRT does not name the plugin for tests; ctest sets it");
    fake_bytes = (size_t)status.st_size;
    fake = malloc(fake_bytes);
    CHECK(fread(fake, fake_bytes, 1, file) == 1);
    fclose(file);
}

/* A copy, since the dynamic linker knows a file by more than its name. */
static const char *fake_named(const char *name) {
    const char *path = path_of(name);
    if (access(path, F_OK) != 0)
        write_file(path, fake, fake_bytes);
    return path;
}

static int live_in(const char *name) { /* -1: the plugin is not loaded */
    void *library = dlopen(path_of(name), RTLD_NOW | RTLD_NOLOAD);
    int (*live)(void) = NULL;
    if (library)
        *(void **)&live = dlsym(library, "fake_live");
    return live ? live() : -1;
}

static bool says(const char *words) {
    return CHECK_MSG(strstr(ra_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", ra_last_error(), words);
}

static const struct ra__pjrt_options no_cache = {.cache = ""};

static void refuses(const char *path, ra_status want, const char *words) {
    struct ra__pjrt *p = NULL;
    const char *slash = strrchr(path, '/');
    CHECK_STATUS(ra__pjrt_open(path, &no_cache, &p), want);
    CHECK(p == NULL);
    says(words);
    says(slash ? slash + 1 : path);
}

static void files_that_are_no_plugins(void) {
    refuses(path_of("absent.so"), RA_ERR_UNSUPPORTED, "no such file");
    refuses("libabsent_for_certain.so", RA_ERR_UNSUPPORTED, "cannot open shared object");
    refuses("libm.so.6", RA_ERR_UNSUPPORTED, "no GetPjrtApi");
    write_file(path_of("text.so"), "INPUT(libm.so)\n", 15);
    refuses(path_of("text.so"), RA_ERR_UNSUPPORTED, "no ELF header");
    write_file(path_of("nothing.so"), "", 0);
    refuses(path_of("nothing.so"), RA_ERR_UNSUPPORTED, "no ELF header");
    refuses(folder, RA_ERR_UNSUPPORTED, "load");
    CHECK_STATUS(ra__pjrt_open("", &no_cache, &(struct ra__pjrt *){NULL}), RA_ERR_INVALID);
    CHECK_STATUS(ra__pjrt_open("x.so", &no_cache, NULL), RA_ERR_INVALID);
    CHECK_STATUS(ra__pjrt_open("x.so", &(struct ra__pjrt_options){.devices = -1}, &(struct ra__pjrt *){NULL}), RA_ERR_INVALID);
}

/* Cut anywhere below the end of its last segment it must be refused: mapping it would end in SIGBUS. */
static void a_library_that_is_cut_off(void) {
    const size_t lengths[] = {1, 63, 64, 100, 500, fake_bytes / 4, fake_bytes / 2};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_file(path_of("cut.so"), fake, lengths[i]);
        refuses(path_of("cut.so"), RA_ERR_UNSUPPORTED, lengths[i] < 64 ? "no ELF header" : "cut off");
    }
    char *other = malloc(fake_bytes);
    memcpy(other, fake, fake_bytes);
    other[18] ^= 0x55; /* e_machine */
    write_file(path_of("machine.so"), other, fake_bytes);
    refuses(path_of("machine.so"), RA_ERR_UNSUPPORTED, "not a shared library of this machine");
    memcpy(other, fake, fake_bytes);
    memset(other + 32, 0xff, 8); /* e_phoff */
    write_file(path_of("offset.so"), other, fake_bytes);
    refuses(path_of("offset.so"), RA_ERR_UNSUPPORTED, "cut off");
    free(other);
}

static void plugins_that_cannot_be_opened(void) {
    refuses(fake_named("fake_major.so"), RA_ERR_UNSUPPORTED, "it speaks PJRT 1.77");
    refuses(fake_named("fake_short.so"), RA_ERR_UNSUPPORTED, "its table has 200 bytes");
    refuses(fake_named("fake_tiny.so"), RA_ERR_UNSUPPORTED, "a table of 16 bytes");
    refuses(fake_named("fake_null.so"), RA_ERR_UNSUPPORTED, "returned nothing");
    refuses(fake_named("fake_init.so"), RA_ERR_UNSUPPORTED, "initialise: not today");
    refuses(fake_named("fake_refuse.so"), RA_ERR_UNSUPPORTED, "open: no such device on this machine");
    refuses(fake_named("fake_empty.so"), RA_ERR_UNSUPPORTED, "it has no devices");
    const char *names[] = {"fake_init.so", "fake_refuse.so", "fake_empty.so"};
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(live_in(names[i]), 0);
}

static struct ra__pjrt *opened(const char *name) {
    struct ra__pjrt *p = NULL;
    CHECK_OK(ra__pjrt_open(fake_named(name), &no_cache, &p));
    return p;
}

static void devices(void) {
    struct ra__pjrt *p = NULL; /* the option that the plugin does not know is left out */
    CHECK_OK(ra__pjrt_open(fake_named("fake_good.so"), &(struct ra__pjrt_options){.devices = 5, .cache = ""}, &p));
    if (!p)
        return;
    CHECK_EQ_INT(ra__pjrt_device_count(p), 2);
    CHECK(strcmp(ra__pjrt_platform(p), "fake") == 0);
    const ra_pjrt_device *d = ra__pjrt_device(p, 1);
    CHECK_EQ_INT(d->id, 300);
    CHECK(strlen(d->kind) == sizeof d->kind - 1 && strncmp(d->kind, "imagined", 8) == 0);
    CHECK(d->coord_count == 3 && d->coords[0] == 1 && d->coords[1] == 2 && d->coords[2] == 3);
    CHECK(d->memory_bytes == (int64_t)16 << 30 && d->memory_used == 5);
    CHECK(ra__pjrt_device(p, 2) == NULL && ra__pjrt_device(p, -1) == NULL);
    ra__pjrt_close(p);
    ra__pjrt_close(NULL);
    CHECK_EQ_INT(live_in("fake_good.so"), 0);
}

static ra_status compile(struct ra__pjrt *p, const char *text, int replicas, const int *order, struct ra__pjrt_executable **program) {
    return ra__pjrt_compile(p, text, strlen(text), replicas, order, program);
}

static void what_is_refused_before_the_plugin_sees_it(void) {
    struct ra__pjrt *p = opened("fake_good.so");
    struct ra__pjrt_executable *program = NULL;
    if (!p)
        return;
    CHECK_STATUS(compile(p, "", 1, NULL, &program), RA_ERR_INVALID);
    CHECK_STATUS(compile(p, "text", 0, NULL, &program), RA_ERR_INVALID);
    says("0 replicas on 2 devices");
    CHECK_STATUS(compile(p, "text", 3, NULL, &program), RA_ERR_INVALID);
    CHECK_STATUS(compile(p, "text", 2, (int[]){7, 8}, &program), RA_ERR_INVALID);
    says("device 8, which does not exist");
    CHECK_STATUS(compile(p, "text", 2, (int[]){7, 7}, &program), RA_ERR_INVALID);
    says("both to run on device 7");
    CHECK_STATUS(compile(p, "nonsense", 1, NULL, &program), RA_ERR_INVALID);
    says("fake_good.so: compile: this is nonsense");
    CHECK(program == NULL);
    ra__pjrt_close(p);
    CHECK_EQ_INT(live_in("fake_good.so"), 0);
}

static void plugins_that_die_while_compiling(void) {
    struct ra__pjrt_executable *program = NULL;
    struct ra__pjrt *p = opened("fake_abort.so"), *q = opened("fake_leave.so"), *r = opened("fake_without.so");
    if (!p || !q || !r)
        return;
    CHECK_STATUS(compile(p, "text", 2, NULL, &program), RA_ERR_UNSUPPORTED);
    says("fake_abort.so: compile: the plugin died of signal 6");
    says("Check failed: text != nullptr");
    CHECK_STATUS(compile(q, "text", 2, (int[]){300, 7}, &program), RA_ERR_UNSUPPORTED);
    says("fake_leave.so: compile: the plugin ended its process");
    CHECK_STATUS(compile(r, "text", 2, NULL, &program), RA_ERR_UNSUPPORTED);
    says("has no function for it");
    CHECK(program == NULL);
    ra__pjrt_close(p);
    ra__pjrt_close(q);
    ra__pjrt_close(r);
}

/* A caller that ignores SIGCHLD never learns how a child ended. */
static void children_that_nobody_waits_for(void) {
    struct ra__pjrt_executable *program = NULL;
    struct ra__pjrt *p = opened("fake_abort.so");
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    if (!p)
        return;
    CHECK_STATUS(compile(p, "text", 2, NULL, &program), RA_ERR_UNSUPPORTED);
    says("fake_abort.so: compile: the plugin ended its process: F0000");
    ra__pjrt_close(p);
    ra_pjrt_list *list = NULL;
    setenv("RA_PJRT_PLUGIN", fake_named("fake_good.so"), 1);
    CHECK_OK(ra_pjrt_list_create(&(ra_pjrt_list_options){.folders = (const char *[]){folder}, .folder_count = 1}, &list));
    const ra_pjrt_plugin *good = ra_pjrt_list_get(list, 0);
    CHECK(good && good->status == RA_OK && good->device_count == 2);
    ra_pjrt_list_destroy(list);
    unsetenv("RA_PJRT_PLUGIN");
    signal(SIGCHLD, before);
}

/* ---- runs */

enum { REPLICAS = 2 };

static struct ra__pjrt_host_array array(void *data, enum ra__pjrt_type type, int64_t rows, int64_t columns) {
    return (struct ra__pjrt_host_array){.type = type, .dim_count = 2, .dims = {rows, columns}, .data = data};
}

/* Two inputs to each of two replicas; the output is the first. */
static ra_status run_on(struct ra__pjrt *p, bool *right) {
    struct ra__pjrt_executable *program;
    float in[2 * REPLICAS][6], out[REPLICAS][6] = {{0}};
    struct ra__pjrt_host_array inputs[2 * REPLICAS], outputs[REPLICAS];
    for (int i = 0; i < 2 * REPLICAS; i++) {
        for (int x = 0; x < 6; x++)
            in[i][x] = (float)(10 * i + x);
        inputs[i] = array(in[i], RA__PJRT_F32, 2, 3);
    }
    for (int r = 0; r < REPLICAS; r++)
        outputs[r] = array(out[r], RA__PJRT_F32, 2, 3);
    ra_status s = compile(p, "text", REPLICAS, NULL, &program);
    if (s != RA_OK)
        return s;
    s = ra__pjrt_run(program, inputs, 2, outputs, 1);
    ra__pjrt_executable_destroy(program);
    *right = true;
    for (int r = 0; r < REPLICAS; r++)
        *right = *right && memcmp(out[r], in[2 * r], sizeof out[r]) == 0;
    return s;
}

static void run_fails(const char *name, ra_status want, const char *words) {
    struct ra__pjrt *p = opened(name);
    bool right;
    if (!p)
        return;
    CHECK_STATUS(run_on(p, &right), want);
    says(words);
    says(name);
    ra__pjrt_close(p);
    CHECK_EQ_INT(live_in(name), 0);
}

static void runs(void) {
    struct ra__pjrt *p = opened("fake_good.so");
    bool right = false;
    if (!p)
        return;
    CHECK_OK(run_on(p, &right));
    CHECK(right);
    ra__pjrt_close(p);
    CHECK_EQ_INT(live_in("fake_good.so"), 0);
    run_fails("fake_send.so", RA_ERR_MEMORY, "copy to a device: the device is full");
    run_fails("fake_execute.so", RA_ERR_INTERNAL, "run: no execution today");
    run_fails("fake_await.so", RA_ERR_INTERNAL, "run: replica 1 fell over");
}

static void arrays_that_do_not_fit(void) {
    struct ra__pjrt *p = opened("fake_good.so");
    struct ra__pjrt_executable *program = NULL;
    if (!p)
        return;
    float x[6] = {0}, y[6] = {0};
    if (!CHECK_OK(compile(p, "text", 1, NULL, &program)))
        return;
    const struct ra__pjrt_host_array in = array(x, RA__PJRT_F32, 2, 3), out = array(y, RA__PJRT_F32, 2, 3);
    CHECK_EQ_INT(ra__pjrt_executable_outputs(program), 1);
    CHECK_STATUS(ra__pjrt_run(program, &in, 1, &out, 2), RA_ERR_INVALID);
    says("the program has 1 outputs");
    const struct {
        struct ra__pjrt_host_array x;
        ra_status status;
        const char *words;
    } bad[] = {{array(y, RA__PJRT_F32, 3, 2), RA_ERR_INVALID, "another shape"},
               {array(y, RA__PJRT_S32, 2, 3), RA_ERR_INVALID, "has type 11, expected was 4"},
               {array(NULL, RA__PJRT_F32, 2, 3), RA_ERR_INVALID, "NULL"},
               {array(y, RA__PJRT_F32, -1, 3), RA_ERR_INVALID, "dimension 0 is -1"},
               {array(y, RA__PJRT_F32, INT64_MAX / 2, 3), RA_ERR_OVERFLOW, "64 bits"},
               {array(y, (enum ra__pjrt_type)1, 2, 3), RA_ERR_INVALID, "type 1"},
               {{RA__PJRT_F32, 9, {0}, y}, RA_ERR_INVALID, "9 dimensions"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(ra__pjrt_run(program, &in, 1, &bad[i].x, 1), bad[i].status);
        says(bad[i].words);
    }
    CHECK_OK(ra__pjrt_run(program, &in, 1, &out, 1));
    ra__pjrt_executable_destroy(program);
    ra__pjrt_close(p);
    CHECK_EQ_INT(live_in("fake_good.so"), 0);
}

/* ---- memory */

static int allocations_left;

static void *limited_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    void *p = NULL;
    return allocations_left-- > 0 && posix_memalign(&p, align, bytes) == 0 ? p : NULL;
}

static void limited_free(void *user, void *p) {
    (void)user;
    free(p);
}

static void memory_that_runs_out(void) {
    const ra_allocator limited = {limited_alloc, limited_free, NULL};
    const struct ra__pjrt_options options = {.cache = "", .allocator = &limited};
    int failed = 0;
    bool right = false;
    for (int k = 0; !right && k < 20; k++) {
        struct ra__pjrt *p = NULL;
        allocations_left = k;
        ra_status s = ra__pjrt_open(fake_named("fake_good.so"), &options, &p);
        if (s == RA_OK)
            s = run_on(p, &right);
        ra__pjrt_close(p);
        CHECK(s == RA_ERR_MEMORY || right);
        failed += s == RA_ERR_MEMORY;
        right = s == RA_OK;
        CHECK_EQ_INT(live_in("fake_good.so"), 0);
    }
    CHECK(right && failed >= 5);
}

/* ---- what is sent, and what is kept */

static void options_as_bytes(void) {
    unsigned char data[256];
    struct ra__pjrt_bytes out = {.data = data};
    ra__pjrt_encode_options(&out, 4, NULL);
    const unsigned char plain[] = {0x1a, 15, 0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0x20, 4, 0x28, 1};
    CHECK(out.count == sizeof plain && memcmp(data, plain, sizeof plain) == 0);
    out.count = 0;
    ra__pjrt_encode_options(&out, 2, (int[]){300, 0});
    const unsigned char ordered[] = {0x1a, 28, 0x08, 255, 255,  255, 255,  255, 255,  255, 255,  255, 1,    0x20, 2,
                                     0x28, 1,  0x4a, 11,  0x08, 2,   0x10, 1,   0x1a, 5,   0x0a, 3,   0xac, 2,    0};
    CHECK(out.count == sizeof ordered && memcmp(data, ordered, sizeof ordered) == 0);
    int order[1000];
    for (int i = 0; i < 1000; i++)
        order[i] = i % 2 ? INT32_MAX - i : -1 - i;
    struct ra__pjrt_bytes large = {.data = malloc(ra__pjrt_options_room(1000))};
    ra__pjrt_encode_options(&large, 1000, order);
    CHECK(large.count <= ra__pjrt_options_room(1000));
    free(large.data);
}

static void cache(void) {
    const ra_allocator a = ra__allocator_or_default(NULL);
    const char data[] = "compiled, more or less";
    const char *place = path_of("a/b/programs");
    struct ra__pjrt_key key, other;
    ra__pjrt_key_begin(&key);
    other = key;
    ra__pjrt_key_add(&key, "ab", 2);
    ra__pjrt_key_add(&key, "c", 1);
    ra__pjrt_key_add(&other, "a", 1);
    ra__pjrt_key_add(&other, "bc", 2);
    CHECK(key.half[0] != other.half[0] && key.half[1] != other.half[1]);

    size_t bytes = 0;
    CHECK(ra__pjrt_cache_read(&a, place, key, &bytes) == NULL);
    ra__pjrt_cache_write(place, key, data, sizeof data);
    char *back = ra__pjrt_cache_read(&a, place, key, &bytes);
    CHECK(back && bytes == sizeof data && memcmp(back, data, bytes) == 0);
    ra__free(&a, back);
    CHECK(ra__pjrt_cache_read(&a, place, other, &bytes) == NULL);
    struct stat status;
    CHECK(stat(place, &status) == 0 && (status.st_mode & 077) == 0);

    /* Every bit counts, and every byte. */
    char path[4300], entry[4096];
    snprintf(path, sizeof path, "%s/%016llx%016llx", place, (unsigned long long)key.half[0], (unsigned long long)key.half[1]);
    FILE *file = fopen(path, "rb");
    const size_t length = file ? fread(entry, 1, sizeof entry, file) : 0;
    if (file)
        fclose(file);
    CHECK(length > sizeof data);
    for (size_t i = 0; i < length; i++) {
        entry[i] ^= 1;
        write_file(path, entry, length);
        CHECK_MSG(ra__pjrt_cache_read(&a, place, key, &bytes) == NULL, "byte %zu was changed", i);
        entry[i] ^= 1;
        write_file(path, entry, i);
        CHECK_MSG(ra__pjrt_cache_read(&a, place, key, &bytes) == NULL, "cut off after %zu bytes", i);
    }
    ra__pjrt_cache_write(place, key, data, sizeof data); /* and it comes back */
    back = ra__pjrt_cache_read(&a, place, key, &bytes);
    CHECK(back != NULL);
    ra__free(&a, back);
    ra__pjrt_cache_write(path_of("text.so/programs"), key, data, sizeof data); /* cannot be made: nothing happens */
    CHECK(ra__pjrt_cache_read(&a, path_of("text.so/programs"), key, &bytes) == NULL);
}

/* ---- discovery */

static void package(const char *folder_name, const char *file, const char *like) {
    char path[4300];
    mkdir(path_of("packages"), 0700);
    for (const char *slash = strchr(folder_name, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(path, sizeof path, "%s/packages/%.*s", folder, (int)(slash - folder_name), folder_name);
        mkdir(path, 0700);
    }
    snprintf(path, sizeof path, "%s/packages/%s", folder, folder_name);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/packages/%s/%s", folder, folder_name, file);
    CHECK_EQ_INT(symlink(fake_named(like), path), 0);
}

static const ra_pjrt_plugin *find(const ra_pjrt_list *list, const char *name) {
    for (int i = 0; i < ra_pjrt_list_size(list); i++)
        if (strstr(ra_pjrt_list_get(list, i)->path, name))
            return ra_pjrt_list_get(list, i);
    CHECK_MSG(false, "%s is not in the list", name);
    return NULL;
}

static void discovery(void) {
    package("libtpu", "libtpu.so", "fake_hang.so");
    package("jax_plugins/good", "plugin.so", "fake_good.so");
    package("jax_plugins/again", "plugin.so", "fake_good.so");
    package("xla_plugins/empty", "plugin.so", "fake_empty.so");
    package("major", "pjrt_c_api_x_plugin.so", "fake_major.so");
    package("other", "not_a_plugin.so", "fake_refuse.so");
    setenv("RA_PJRT_PLUGIN", path_of("text.so"), 1);
    const char *folders[] = {path_of("packages"), path_of("no_such_folder")};
    const ra_pjrt_list_options options = {.folders = folders, .folder_count = 2, .timeout_s = 2};
    ra_pjrt_list *list = NULL;
    const double begun = ra__now();
    if (!CHECK_OK(ra_pjrt_list_create(&options, &list)))
        return;
    CHECK(ra__now() - begun < 20);
    CHECK_EQ_INT(ra_pjrt_list_size(list), 6); /* the good one once */
    const ra_pjrt_plugin *named = ra_pjrt_list_get(list, 0), *good = find(list, "fake_good"), *hang = find(list, "fake_hang"),
                         *empty = find(list, "fake_empty"), *major = find(list, "fake_major");
    if (!good || !hang || !empty || !major)
        return;
    CHECK(strcmp(named->found_by, "RA_PJRT_PLUGIN") == 0 && named->status == RA_ERR_UNSUPPORTED && strstr(named->why, "no ELF header"));
    CHECK(good->status == RA_OK && good->why[0] == 0 && good->api_major == 0 && good->api_minor == 77);
    CHECK(strcmp(good->platform, "fake") == 0 && strstr(good->platform_version, "second line"));
    CHECK(good->device_count == 2 && good->devices[1].id == 300 && good->devices[0].memory_bytes == (int64_t)16 << 30);
    CHECK(hang->status == RA_ERR_TIMEOUT && strstr(hang->why, "open: no answer within 2 s") && hang->api_minor == 77);
    CHECK(empty->status == RA_ERR_UNSUPPORTED && strstr(empty->why, "no devices") && empty->device_count == 0);
    CHECK(major->status == RA_ERR_UNSUPPORTED && major->api_major == 1 && strstr(major->why, "speaks PJRT 1.77"));
    CHECK(ra_pjrt_list_get(list, 6) == NULL && ra_pjrt_list_get(list, -1) == NULL && ra_pjrt_list_get(NULL, 0) == NULL);
    ra_pjrt_list_destroy(list);
    unsetenv("RA_PJRT_PLUGIN");
}

static void discovery_refuses(void) {
    ra_pjrt_list *list = NULL;
    CHECK_STATUS(ra_pjrt_list_create(NULL, NULL), RA_ERR_INVALID);
    CHECK_STATUS(ra_pjrt_list_create(&(ra_pjrt_list_options){.timeout_s = -1}, &list), RA_ERR_INVALID);
    CHECK_STATUS(ra_pjrt_list_create(&(ra_pjrt_list_options){.timeout_s = NAN}, &list), RA_ERR_INVALID);
    CHECK_STATUS(ra_pjrt_list_create(&(ra_pjrt_list_options){.folder_count = 1}, &list), RA_ERR_INVALID);
    CHECK_STATUS(ra_pjrt_list_create(&(ra_pjrt_list_options){.folders = (const char *[]){NULL}, .folder_count = 1}, &list), RA_ERR_INVALID);
    const ra_allocator limited = {limited_alloc, limited_free, NULL};
    const char *folders[] = {path_of("packages")};
    bool whole = false;
    int failed = 0;
    for (int k = 0; !whole && k < 30; k++) {
        allocations_left = k;
        ra_status s = ra_pjrt_list_create(
            &(ra_pjrt_list_options){.folders = folders, .folder_count = 0, .timeout_s = 2, .allocator = &limited}, &list);
        CHECK(s == RA_OK || s == RA_ERR_MEMORY);
        failed += s == RA_ERR_MEMORY;
        whole = s == RA_OK;
    }
    CHECK(whole && failed >= 3);
    ra_pjrt_list_destroy(list);
    ra_pjrt_list_destroy(NULL);
}

static void clean_up(void) {
    char command[sizeof folder + 16];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        fprintf(stderr, "%s is left behind\n", folder);
}

int main(void) {
    read_fake();
    if (!mkdtemp(folder))
        CHECK_SKIP("no temporary folder");
    RUN(files_that_are_no_plugins);
    RUN(a_library_that_is_cut_off);
    RUN(plugins_that_cannot_be_opened);
    RUN(devices);
    RUN(what_is_refused_before_the_plugin_sees_it);
    RUN(plugins_that_die_while_compiling);
    RUN(children_that_nobody_waits_for);
    RUN(runs);
    RUN(arrays_that_do_not_fit);
    RUN(memory_that_runs_out);
    RUN(options_as_bytes);
    RUN(cache);
    RUN(discovery);
    RUN(discovery_refuses);
    clean_up();
    free(fake);
    return check_result();
}
