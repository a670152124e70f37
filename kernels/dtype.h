/* kernels/dtype.h - element types known to kernels, plans and checkpoints. Owns nothing else. */
#ifndef ZINF_KERNELS_DTYPE_H
#define ZINF_KERNELS_DTYPE_H

#include <stdint.h>

/* name, bytes of one element, name in a safetensors header */
#define ZINF_DTYPES(X)                                                                           \
    X(F32, 4, "F32")                                                                             \
    X(BF16, 2, "BF16")                                                                           \
    X(F16, 2, "F16")                                                                             \
    X(F64, 8, "F64")                                                                             \
    X(I32, 4, "I32")                                                                             \
    X(U8, 1, "U8")

typedef enum zinf_dtype {
#define X(name, bytes, text) ZINF_##name,
    ZINF_DTYPES(X)
#undef X
    ZINF_N_DTYPES
} zinf_dtype;

/* Bytes of one element; 0 for a value outside the enumeration. */
static inline uint64_t zinf_dtype_bytes(unsigned dtype)
{
    static const uint8_t bytes[ZINF_N_DTYPES] = {
#define X(name, bytes, text) bytes,
        ZINF_DTYPES(X)
#undef X
    };
    return dtype < ZINF_N_DTYPES ? bytes[dtype] : 0;
}

/* Name as in a safetensors header ("F32"); "?" for a value outside the enumeration. */
static inline const char *zinf_dtype_name(unsigned dtype)
{
    static const char *const names[ZINF_N_DTYPES] = {
#define X(name, bytes, text) text,
        ZINF_DTYPES(X)
#undef X
    };
    return dtype < ZINF_N_DTYPES ? names[dtype] : "?";
}

#endif
