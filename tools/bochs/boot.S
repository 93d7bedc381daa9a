/* From the state a multiboot loader leaves (32 bits, no paging) to 64 bits with AVX-512 and AMX enabled, then kernel.c; and the entries of
 * system calls and exceptions. Everything runs in ring 0 with interrupts off. */
    .section .text.start, "ax"
    .code32
    .balign 4
    .long 0x1badb002, 2, -(0x1badb002 + 2) /* multiboot header: wants the memory map */
    .globl start
start:
    movl %ebx, %ebp /* the loader's information */
    /* Identity map of the first GB by pages of 2 MB; kernel.c refines a part of it. */
    movl $directory + 7, pointers
    movl $pointers + 7, root
    movl $directory, %edi
    movl $0x87, %eax
1:  movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    cmpl $directory + 4096, %edi
    jne 1b
    movl $root, %eax
    movl %eax, %cr3
    movl $0x40620, %eax /* PAE, OSFXSR, OSXMMEXCPT, OSXSAVE */
    movl %eax, %cr4
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x101, %eax /* long mode, SYSCALL */
    wrmsr
    lgdt gdt_pointer
    movl %cr0, %eax
    andl $~0xc, %eax
    orl $0x80010023, %eax /* paging, write protection, floating point */
    movl %eax, %cr0
    ljmp $8, $long_mode
    .code64
long_mode:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $stack_top, %esp
    xorl %ecx, %ecx
    xorl %edx, %edx
    movl $0x600e7, %eax /* x87, SSE, AVX, AVX-512, AMX */
    xsetbv
    movl %ebp, %edi
    call kernel_main

/* SYSCALL: number in rax, return address in rcx. The caller's red zone is skipped, its stack used; kernel.c is built without vectors. */
    .globl syscall_entry
syscall_entry:
    leaq -128(%rsp), %rsp
    pushq %rcx
    pushq %r11
    pushq %rbx
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %r10
    pushq %r8
    pushq %r9
    movq %rsp, %rbx
    andq $-16, %rsp
    movq %r10, %rcx
    movq %rax, %r9 /* system_call(a, b, c, d, e, number) */
    call system_call
    movq %rbx, %rsp
    popq %r9
    popq %r8
    popq %r10
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rbx
    popq %r11
    popq %rcx
    leaq 128(%rsp), %rsp
    jmp *%rcx

/* enter(entry, stack) */
    .globl enter
enter:
    movq %rsi, %rsp
    xorl %edx, %edx
    xorl %ebp, %ebp
    jmp *%rdi

    .globl exception_entries
    .balign 16
exception_entries:
    vector = 0
    .rept 32
    .balign 16
    pushq $vector
    jmp exception
    vector = vector + 1
    .endr
exception: /* whether there is an error code depends on the vector: show both words */
    popq %rdi
    movq (%rsp), %rsi
    movq 8(%rsp), %rdx
    movq %cr2, %rcx
    movl $trap_stack_top, %esp
    call exception_report

    .section .data
    .balign 8
gdt:
    .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff
gdt_pointer:
    .word 23
    .long gdt

    .section .bss
    .balign 4096
root:
    .skip 4096
pointers:
    .skip 4096
    .globl directory
directory:
    .skip 4096
    .skip 65536
stack_top:
    .skip 8192
trap_stack_top:

    .section .note.GNU-stack, "", @progbits
