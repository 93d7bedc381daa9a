/* The part of the PJRT C interface that this client calls, in its own words.
 *
 * A plugin is a shared library with one entry point, GetPjrtApi, which returns a table of functions. Each takes one struct of arguments and
 * returns an error object or NULL. Within major version 0 tables and structs only grow at their ends, and each begins with its size, so a
 * short struct of ours suits a newer plugin, and a slot of a plugin's table may be used if the table is long enough and the slot not NULL.
 * tests/abi_pjrt.c compares all of this with the official header. */
#ifndef RA_PJRT_ABI_H
#define RA_PJRT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RA__PJ_MAJOR       0
#define RA__PJ_ENTRY_POINT "GetPjrtApi"

/* Places in the table of functions. The comment names the struct of arguments. */
enum ra__pj_slot {
    RA__PJ_ERROR_DESTROY = 0,               /* object; returns nothing */
    RA__PJ_ERROR_MESSAGE = 1,               /* text; returns nothing */
    RA__PJ_ERROR_CODE = 2,                  /* number */
    RA__PJ_PLUGIN_INITIALIZE = 3,           /* header alone */
    RA__PJ_EVENT_DESTROY = 5,               /* object */
    RA__PJ_EVENT_AWAIT = 8,                 /* object */
    RA__PJ_CLIENT_CREATE = 10,              /* client_create */
    RA__PJ_CLIENT_DESTROY = 11,             /* object */
    RA__PJ_CLIENT_PLATFORM_NAME = 12,       /* text */
    RA__PJ_CLIENT_PLATFORM_VERSION = 14,    /* text */
    RA__PJ_CLIENT_ADDRESSABLE_DEVICES = 16, /* list */
    RA__PJ_CLIENT_COMPILE = 20,             /* compile */
    RA__PJ_CLIENT_BUFFER_FROM_HOST = 22,    /* from_host */
    RA__PJ_DESCRIPTION_ID = 23,             /* number */
    RA__PJ_DESCRIPTION_ATTRIBUTES = 25,     /* attributes */
    RA__PJ_DESCRIPTION_KIND = 26,           /* text */
    RA__PJ_DEVICE_DESCRIPTION = 29,         /* get */
    RA__PJ_DEVICE_MEMORY_STATS = 34,        /* memory_stats */
    RA__PJ_EXECUTABLE_DESTROY = 40,         /* object */
    RA__PJ_EXECUTABLE_OUTPUTS = 44,         /* size */
    RA__PJ_EXECUTABLE_SERIALIZE = 49,       /* serialize */
    RA__PJ_LOADED_DESTROY = 50,             /* object */
    RA__PJ_LOADED_EXECUTABLE = 51,          /* get */
    RA__PJ_LOADED_DEVICES = 52,             /* list */
    RA__PJ_LOADED_EXECUTE = 55,             /* execute */
    RA__PJ_DESERIALIZE = 56,                /* deserialize */
    RA__PJ_BUFFER_DESTROY = 58,             /* object */
    RA__PJ_BUFFER_TYPE = 59,                /* number */
    RA__PJ_BUFFER_DIMS = 60,                /* dims */
    RA__PJ_BUFFER_TO_HOST = 70,             /* to_host */
    RA__PJ_REQUIRED = 71                    /* a table shorter than this many slots cannot run a program */
};

struct ra__pj_extension {
    size_t size;
    int type;
    struct ra__pj_extension *next;
};

/* What every struct begins with. */
struct ra__pj_head {
    size_t size; /* of the whole struct */
    struct ra__pj_extension *extensions;
};

struct ra__pj_version {
    struct ra__pj_head head;
    int major, minor;
};

struct ra__pj_api {
    struct ra__pj_head head; /* the size counts the slots, too */
    struct ra__pj_version version;
    void (*slot[])(void); /* cast to ra__pj_function for a call */
};

/* Objects of the plugin's own: errors, events, clients, devices, descriptions, executables, buffers. */
typedef void ra__pj_object;
typedef ra__pj_object *ra__pj_function(void *args); /* returns an error or NULL */

enum ra__pj_value_type { RA__PJ_STRING = 0, RA__PJ_INT = 1, RA__PJ_INT_LIST = 2, RA__PJ_FLOAT = 3, RA__PJ_BOOL = 4 };

struct ra__pj_value { /* an option or an attribute */
    struct ra__pj_head head;
    const char *name;
    size_t name_length;
    int type;
    union {
        const char *text;
        int64_t integer;
        const int64_t *integers;
        float real;
        bool truth;
    } is;
    size_t length; /* of a text or a list, else 1 */
};

/* ---- arguments; "out" is written by the plugin */

struct ra__pj_object_args {
    struct ra__pj_head head;
    ra__pj_object *object;
};

struct ra__pj_text_args {
    struct ra__pj_head head;
    const ra__pj_object *object;
    const char *text; /* out, lives as long as the object */
    size_t length;    /* out */
};

struct ra__pj_number_args {
    struct ra__pj_head head;
    const ra__pj_object *object;
    int number; /* out */
};

struct ra__pj_size_args {
    struct ra__pj_head head;
    ra__pj_object *object;
    size_t number; /* out */
};

struct ra__pj_list_args {
    struct ra__pj_head head;
    ra__pj_object *object;
    ra__pj_object *const *items; /* out, lives as long as the object */
    size_t count;                /* out */
};

struct ra__pj_get_args {
    struct ra__pj_head head;
    ra__pj_object *object;
    ra__pj_object *got; /* out */
};

struct ra__pj_attributes_args {
    struct ra__pj_head head;
    ra__pj_object *object;
    size_t count;                      /* out */
    const struct ra__pj_value *values; /* out */
};

struct ra__pj_client_create_args {
    struct ra__pj_head head;
    const struct ra__pj_value *options;
    size_t option_count;
    void *kv_get, *kv_get_user, *kv_put, *kv_put_user; /* key-value store of several processes */
    ra__pj_object *client;                             /* out */
    void *kv_try_get, *kv_try_get_user;
};

struct ra__pj_program {
    struct ra__pj_head head;
    char *code;
    size_t code_bytes;
    const char *format; /* "mlir" */
    size_t format_length;
};

struct ra__pj_compile_args {
    struct ra__pj_head head;
    ra__pj_object *client;
    const struct ra__pj_program *program;
    const char *options; /* a CompileOptionsProto, see options.c */
    size_t options_bytes;
    ra__pj_object *executable; /* out, a loaded one */
};

struct ra__pj_serialize_args {
    struct ra__pj_head head;
    const ra__pj_object *executable;
    const char *bytes;                /* out */
    size_t count;                     /* out */
    ra__pj_object *owner;             /* out, of bytes */
    void (*release)(ra__pj_object *); /* out, to be called with the owner */
};

struct ra__pj_deserialize_args {
    struct ra__pj_head head;
    ra__pj_object *client;
    const char *bytes;
    size_t count;
    ra__pj_object *executable; /* out, a loaded one */
    const char *options;       /* NULL: as compiled */
    size_t options_bytes;
};

enum ra__pj_host_semantics { RA__PJ_DURING_CALL = 0, RA__PJ_UNTIL_TRANSFERRED = 1 };
enum ra__pj_layout_type { RA__PJ_TILED = 0, RA__PJ_STRIDED = 1 };

struct ra__pj_layout {
    struct ra__pj_head head;
    struct { /* the longer half of a union with a list of strides */
        struct ra__pj_head head;
        const int64_t *minor_to_major; /* the dimension whose index varies fastest, then the next ... */
        size_t count;
        const int64_t *tiles;
        const size_t *tile_lengths;
        size_t tile_count;
    } tiled;
    int type;
};

struct ra__pj_from_host_args {
    struct ra__pj_head head;
    ra__pj_object *client;
    const void *data;
    int type;
    const int64_t *dims;
    size_t dim_count;
    const int64_t *strides; /* NULL: row-major, no gaps */
    size_t stride_count;
    int semantics;
    ra__pj_object *device, *memory;
    struct ra__pj_layout *layout; /* on the device; NULL: its choice */
    ra__pj_object *done;          /* out, an event: data is no longer needed */
    ra__pj_object *buffer;        /* out */
};

struct ra__pj_to_host_args {
    struct ra__pj_head head;
    ra__pj_object *buffer;
    struct ra__pj_layout *layout; /* of data; NULL: the device's */
    void *data;                   /* NULL: only asks for bytes */
    size_t bytes;
    ra__pj_object *done; /* out, an event */
};

struct ra__pj_dims_args {
    struct ra__pj_head head;
    ra__pj_object *buffer;
    const int64_t *dims; /* out, lives as long as the buffer */
    size_t count;        /* out */
};

struct ra__pj_execute_options {
    struct ra__pj_head head;
    void *send_callbacks, *recv_callbacks;
    size_t send_count, recv_count;
    int launch; /* tells the runs of one program apart */
    const int64_t *not_donatable;
    size_t not_donatable_count;
    ra__pj_object *context;
    const char *call_location;
    size_t task_count; /* of a job of several processes */
    int *task_ids;
    int64_t *incarnations;
};

struct ra__pj_execute_args {
    struct ra__pj_head head;
    ra__pj_object *executable;
    struct ra__pj_execute_options *options;
    ra__pj_object *const *const *inputs; /* [devices][input_count] */
    size_t devices, input_count;
    ra__pj_object **const *outputs; /* [devices][outputs], written */
    ra__pj_object **done;           /* [devices], written: events */
    ra__pj_object *device;          /* NULL: those the program was compiled for */
};

struct ra__pj_memory_stats_args {
    struct ra__pj_head head;
    ra__pj_object *device;
    int64_t in_use; /* out, as all that follows; a flag says whether the number before it is known */
    int64_t peak;
    bool peak_known;
    int64_t allocations;
    bool allocations_known;
    int64_t largest;
    bool largest_known;
    int64_t limit;
    bool limit_known;
    int64_t reserved;
    bool reserved_known;
    int64_t peak_reserved;
    bool peak_reserved_known;
    int64_t reservable;
    bool reservable_known;
    int64_t largest_free;
    bool largest_free_known;
    int64_t pool;
    bool pool_known;
    int64_t peak_pool;
    bool peak_pool_known;
};

enum ra__pj_error_code {
    RA__PJ_INVALID_ARGUMENT = 3,
    RA__PJ_DEADLINE_EXCEEDED = 4,
    RA__PJ_RESOURCE_EXHAUSTED = 8,
    RA__PJ_UNIMPLEMENTED = 12,
    RA__PJ_INTERNAL = 13
};

enum ra__pj_type { RA__PJ_S32 = 4, RA__PJ_U32 = 8, RA__PJ_F16 = 10, RA__PJ_F32 = 11, RA__PJ_BF16 = 13 };

#endif
