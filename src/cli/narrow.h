/* fp32 to the 16-bit types, nearest even. */
#ifndef RINGATTN_NARROW_H
#define RINGATTN_NARROW_H

#include "ringattention.h"

uint16_t narrow_bf16(float x);
uint16_t narrow_f16(float x);

/* Turns n floats into n elements of dtype in the same memory. */
void narrow_in_place(void *data, int64_t n, ra_dtype dtype);

#endif
