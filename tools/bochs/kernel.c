/* The least kernel that runs a test: loads one static ELF program, given by the boot loader as a module, and serves the system calls of a
 * single-threaded C program that allocates, protects pages and prints. Output goes to the first serial port; the end is a line
 * "@@EXIT status". */
#include <stddef.h>
#include <stdint.h>

/* 0 | 4 MB program, heap | 128 MB kernel, program file | 192 MB mappings, in pages of 4 KB | 448 MB stack | 512 MB */
enum { HEAP_END = 0x7000000, MAP_BEGIN = 0xc000000, MAP_END = 0x1c000000, STACK_TOP = 0x1ff00000, PAGE = 4096 };
enum { PRESENT = 1, WRITABLE = 2, LARGE = 0x80 };

extern uint64_t directory[512];
extern char syscall_entry[], exception_entries[];
_Noreturn void enter(uint64_t entry, uint64_t *stack);
_Noreturn void kernel_main(const uint32_t *boot);
long system_call(long a, long b, long c, long d, long e, long number);
_Noreturn void exception_report(long vector, uint64_t first, uint64_t second, uint64_t address);
void *memset(void *to, int value, size_t n);
void *memcpy(void *to, const void *from, size_t n);

static uint64_t pages[(MAP_END - MAP_BEGIN) / PAGE] __attribute__((aligned(4096)));
static uint64_t heap_begin, heap, mapped = MAP_BEGIN;

void *memset(void *to, int value, size_t n) {
    char *p = to;
    __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(value) : "memory");
    return to;
}

void *memcpy(void *to, const void *from, size_t n) {
    char *p = to;
    __asm__ volatile("rep movsb" : "+D"(p), "+S"(from), "+c"(n) : : "memory");
    return to;
}

static void out(uint16_t port, uint8_t value) {
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static uint8_t in(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void write_msr(uint32_t msr, uint64_t value) {
    __asm__ volatile("wrmsr" : : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)));
}

static void put(char c) {
    while (!(in(0x3fd) & 0x20))
        ;
    out(0x3f8, (uint8_t)c);
}

static void print(const char *s) {
    while (*s)
        put(*s++);
}

static void print_hex(uint64_t x) {
    print(" 0x");
    for (int shift = 60; shift >= 0; shift -= 4)
        put("0123456789abcdef"[x >> shift & 15]);
}

static _Noreturn void finish(int status) {
    print("\n@@EXIT ");
    for (int digit = 100; digit; digit /= 10)
        put((char)('0' + status / digit % 10));
    put('\n');
    while (!(in(0x3fd) & 0x40)) /* the port has sent everything */
        ;
    for (;;)
        for (const char *s = "Shutdown"; *s; s++) /* Bochs' own way to be switched off */
            out(0x8900, (uint8_t)*s);
}

void exception_report(long vector, uint64_t first, uint64_t second, uint64_t address) {
    print("\nexception");
    print_hex((uint64_t)vector);
    print(" stack");
    print_hex(first);
    print_hex(second);
    print(" cr2");
    print_hex(address);
    finish(139);
}

static void protect(uint64_t at, uint64_t bytes, uint64_t bits) {
    for (uint64_t end = at + bytes; at < end; at += PAGE) {
        if (at < MAP_BEGIN || at >= MAP_END)
            continue;
        pages[(at - MAP_BEGIN) / PAGE] = at | bits;
        __asm__ volatile("invlpg (%0)" : : "r"(at) : "memory");
    }
}

static uint64_t bits_of(long protection) { /* PROT_NONE, PROT_READ, more */
    return protection == 0 ? 0 : protection & 2 ? PRESENT | WRITABLE : PRESENT;
}

static long map(uint64_t bytes, long protection) {
    const uint64_t at = mapped;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (at + bytes + PAGE > MAP_END)
        return -12; /* ENOMEM */
    mapped += bytes + PAGE;
    protect(at, bytes, PRESENT | WRITABLE);
    memset((void *)at, 0, bytes);
    protect(at, bytes, bits_of(protection));
    return (long)at;
}

long system_call(long a, long b, long c, long d, long e, long number) {
    long total = 0;
    uint32_t low, high;
    (void)e;
    switch (number) {
    case 1: /* write */
        for (long i = 0; i < c; i++)
            put(((const char *)b)[i]);
        return c;
    case 20: /* writev */
        for (long i = 0; i < c; i++) {
            const long *part = (const long *)b + 2 * i;
            total += system_call(a, part[0], part[1], 0, 0, 1);
        }
        return total;
    case 9: /* mmap, anonymous */
        return map((uint64_t)b, c);
    case 10: /* mprotect */
        protect((uint64_t)a, (uint64_t)b, bits_of(c));
        return 0;
    case 11: /* munmap: never used again, so that later use is noticed */
        protect((uint64_t)a, (uint64_t)b, 0);
        return 0;
    case 12: /* brk */
        if ((uint64_t)a < heap_begin || a >= HEAP_END)
            return (long)heap;
        if ((uint64_t)a > heap) /* the C library relies on new memory being 0 */
            memset((void *)heap, 0, (uint64_t)a - heap);
        heap = (uint64_t)a;
        return a;
    case 158: /* arch_prctl: ARCH_SET_FS; ARCH_REQ_XCOMP_PERM for the tiles */
        if (a == 0x1002)
            write_msr(0xc0000100, (uint64_t)b);
        return a == 0x1002 || (a == 0x1023 && b == 18) ? 0 : -22;
    case 228: /* clock_gettime: of a processor of 1 GHz */
        __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
        total = (long)((uint64_t)high << 32 | low);
        ((long *)b)[0] = total / 1000000000;
        ((long *)b)[1] = total % 1000000000;
        return 0;
    case 318: /* getrandom */
        memset((void *)a, 42, (size_t)b);
        return b;
    case 302: /* prlimit64: the stack's */
        if (d)
            ((long *)d)[0] = ((long *)d)[1] = 8 << 20;
        return 0;
    case 39: /* getpid */
    case 186:
    case 218: /* set_tid_address */
        return 1;
    case 16: /* ioctl: not a terminal */
        return -25;
    case 5: /* fstat */
        return -9;
    case 13: /* rt_sigaction, rt_sigprocmask, sched_yield, set_robust_list */
    case 14:
    case 24:
    case 273:
        return 0;
    case 60: /* exit, exit_group */
    case 231:
        finish((int)a & 255);
    default:
        return -38; /* ENOSYS */
    }
}

static uint64_t descriptors[64] __attribute__((aligned(16)));

static void set_up_exceptions(void) {
    for (int i = 0; i < 32; i++) {
        const uint64_t at = (uint64_t)exception_entries + 16 * (uint64_t)i;
        descriptors[2 * i] = (at & 0xffff) | 8ull << 16 | 0x8eull << 40 | (at >> 16 & 0xffff) << 48;
        descriptors[2 * i + 1] = at >> 32;
    }
    struct {
        uint16_t limit;
        uint64_t base;
    } __attribute__((packed)) pointer = {sizeof descriptors - 1, (uint64_t)descriptors};
    __asm__ volatile("lidt %0" : : "m"(pointer));
}

static void set_up_pages(void) {
    for (int i = 0; i < (MAP_END - MAP_BEGIN) >> 21; i++)
        directory[(MAP_BEGIN >> 21) + i] = (uint64_t)(pages + 512 * i) | PRESENT | WRITABLE;
    __asm__ volatile("mov %%cr3, %%rax; mov %%rax, %%cr3" : : : "rax", "memory");
}

struct segment { /* of an ELF file */
    uint32_t type, flags;
    uint64_t offset, at, physical, in_file, in_memory, align;
};

/* Argument vector, environment and auxiliary vector as Linux lays them out. Words with '=' of the module's command line are variables. */
static uint64_t *make_stack(const unsigned char *elf, uint64_t headers, char *line) {
    static uint64_t random[2] = {1, 2};
    uint64_t *stack = (uint64_t *)STACK_TOP, *sp = stack;
    *sp++ = 1;
    *sp++ = (uint64_t) "program";
    *sp++ = 0;
    while (*line) {
        char *word = line;
        int variable = 0;
        for (; *line && *line != ' '; line++)
            variable |= *line == '=';
        if (*line)
            *line++ = 0;
        if (variable)
            *sp++ = (uint64_t)word;
    }
    *sp++ = 0;
    const uint64_t auxiliary[] = {3,  headers,
                                  4,  sizeof(struct segment),
                                  5,  *(const uint16_t *)(elf + 56),
                                  6,  PAGE,
                                  11, 0,
                                  12, 0,
                                  13, 0,
                                  14, 0,
                                  23, 0,
                                  25, (uint64_t)random,
                                  51, 0x2c00,
                                  0,  0};
    memcpy(sp, auxiliary, sizeof auxiliary);
    return stack;
}

void kernel_main(const uint32_t *boot) {
    out(0x3fb, 3); /* 8 bits a character */
    set_up_exceptions();
    set_up_pages();
    const uint32_t *module = (const uint32_t *)(uint64_t)boot[6]; /* mods_addr: begin, end, command line */
    const unsigned char *elf = (const unsigned char *)(uint64_t)module[0];
    const uint64_t entry = *(const uint64_t *)(elf + 24);
    const struct segment *s = (const struct segment *)(elf + *(const uint64_t *)(elf + 32));
    uint64_t headers = 0, end = 0;
    if (*(const uint16_t *)(elf + 16) != 2 || (uint64_t)elf < 0x8000000) {
        print("not a static program with fixed addresses, or loaded in its own way\n");
        finish(126);
    }
    for (int i = 0; i < *(const uint16_t *)(elf + 56); i++, s++) {
        if (s->type != 1)
            continue;
        memcpy((void *)s->at, elf + s->offset, s->in_file);
        memset((void *)(s->at + s->in_file), 0, s->in_memory - s->in_file);
        end = s->at + s->in_memory > end ? s->at + s->in_memory : end;
        if (s->offset == 0)
            headers = s->at + *(const uint64_t *)(elf + 32);
    }
    heap_begin = heap = (end + PAGE - 1) / PAGE * PAGE;
    write_msr(0xc0000081, 8ull << 32); /* STAR, LSTAR, FMASK */
    write_msr(0xc0000082, (uint64_t)syscall_entry);
    write_msr(0xc0000084, 0);
    print("\n@@BEGIN\n");
    enter(entry, make_stack(elf, headers, (char *)(uint64_t)module[2]));
}
