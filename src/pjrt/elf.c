/* Whether a file is a whole shared library of this machine. The dynamic linker maps what the file's table of segments says, so one that was
 * cut off on its way here would kill the process with SIGBUS. */
#define _POSIX_C_SOURCE 200809L
#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "pjrt/internal.h"

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_NONE
#endif

static bool segments_are_there(FILE *file, const Elf64_Ehdr *header, uint64_t bytes) {
    for (int i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment;
        uint64_t end;
        if (fseeko(file, (off_t)(header->e_phoff + (uint64_t)i * sizeof segment), SEEK_SET) != 0 ||
            fread(&segment, sizeof segment, 1, file) != 1)
            return false;
        if (segment.p_type == PT_LOAD && (__builtin_add_overflow(segment.p_offset, segment.p_filesz, &end) || end > bytes))
            return false;
    }
    return true;
}

static ra_status check(FILE *file, const char *name) {
    Elf64_Ehdr header;
    if (fread(&header, sizeof header, 1, file) != 1 || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: not a shared library (no ELF header)", name);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN || (MACHINE != EM_NONE && header.e_machine != MACHINE))
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: not a shared library of this machine (ELF class %d, type %d, machine %d)", name,
                        header.e_ident[EI_CLASS], header.e_type, header.e_machine);
    off_t bytes = fseeko(file, 0, SEEK_END) == 0 ? ftello(file) : -1;
    if (bytes < 0 || header.e_phentsize != sizeof(Elf64_Phdr) || !segments_are_there(file, &header, (uint64_t)bytes))
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: the file is cut off after %lld bytes", name, (long long)bytes);
    return RA_OK;
}

ra_status ra__pjrt_check_elf(const char *path, const char *name) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: the file cannot be opened", name);
    ra_status s = check(file, name);
    fclose(file);
    return s;
}
