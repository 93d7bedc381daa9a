/* xla.CompileOptionsProto in protobuf's wire format. Of its many fields a ring needs these:
 *
 *     3 executable_build_options { 1 device_ordinal = -1, 4 num_replicas, 5 num_partitions = 1,
 *                                  9 device_assignment { 1 replica_count, 2 computation_count = 1,
 *                                                        3 computation_devices { 1 replica_device_ids, packed } } }
 *
 * A field is its number * 8 + kind, then a varint (kind 0), or a length and bytes (kind 2). */
#include "pjrt/internal.h"

enum { VARINT = 0, BYTES = 2, LONGEST_VARINT = 10 };

static void put_varint(struct ra__pjrt_bytes *out, uint64_t x) {
    for (; x > 127; x >>= 7)
        out->data[out->count++] = (unsigned char)(x | 128);
    out->data[out->count++] = (unsigned char)x;
}

static size_t varint_bytes(uint64_t x) {
    size_t n = 1;
    for (; x > 127; x >>= 7)
        n++;
    return n;
}

static void put_number(struct ra__pjrt_bytes *out, unsigned field, uint64_t x) {
    put_varint(out, field * 8 + VARINT);
    put_varint(out, x);
}

static void put_length(struct ra__pjrt_bytes *out, unsigned field, size_t bytes) {
    put_varint(out, field * 8 + BYTES);
    put_varint(out, bytes);
}

static size_t number_bytes(uint64_t x) { /* fields below 16 */
    return 1 + varint_bytes(x);
}

static size_t nested_bytes(size_t bytes) {
    return 1 + varint_bytes(bytes) + bytes;
}

static uint64_t as_varint(int x) { /* negative numbers are sign-extended */
    return (uint64_t)(int64_t)x;
}

size_t ra__pjrt_options_room(int replicas) {
    return 128 + (size_t)replicas * LONGEST_VARINT;
}

void ra__pjrt_encode_options(struct ra__pjrt_bytes *out, int replicas, const int *order) {
    /* Lengths come before contents, so add them up from the inside. */
    size_t ids = 0;
    for (int r = 0; order && r < replicas; r++)
        ids += varint_bytes(as_varint(order[r]));
    const size_t column = nested_bytes(ids);
    const size_t assignment = number_bytes(as_varint(replicas)) + number_bytes(1) + nested_bytes(column);
    const size_t build =
        number_bytes(as_varint(-1)) + number_bytes(as_varint(replicas)) + number_bytes(1) + (order ? nested_bytes(assignment) : 0);
    put_length(out, 3, build);
    put_number(out, 1, as_varint(-1));
    put_number(out, 4, as_varint(replicas));
    put_number(out, 5, 1);
    if (!order)
        return;
    put_length(out, 9, assignment);
    put_number(out, 1, as_varint(replicas));
    put_number(out, 2, 1);
    put_length(out, 3, column);
    put_length(out, 1, ids);
    for (int r = 0; r < replicas; r++)
        put_varint(out, as_varint(order[r]));
}
