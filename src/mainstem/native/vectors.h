/* Vector types and functions for one instruction set, which the including file names by
 *   LANES    floats in a vector,
 *   TARGET   the function attribute that allows the instructions,
 *   NAME(x)  the name of x for this instruction set,
 *   WIDEN_FLOAT16(to, halves), WIDEN_INT8(to, bytes)  its instructions that make floats of float16, and whole numbers of
 *            32 bits of those of 8, in memory; where they are not defined, it has none.
 */

/* Vectors in memory are aligned like their elements, for slots begin anywhere. */
typedef float NAME(Floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(Ints) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t NAME(Words) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t NAME(Halves) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef int8_t NAME(Bytes) __attribute__((vector_size(LANES), aligned(1), may_alias));
#define Floats NAME(Floats)
#define Ints NAME(Ints)
#define Words NAME(Words)
#define Halves NAME(Halves)
#define Bytes NAME(Bytes)
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define AT(p) (*(Floats *)(p))
#define READ(p) (*(const Floats *)(p))

/* Vectors are passed by address: their calling convention would depend on the instruction set. */

/* 2 to the power of x, for x <= 0, to 2e-7; exactly 0 below -126; NaN stays NaN. */
INLINE void NAME(exp2)(Floats *values) {
    const Floats x = *values;
    const Floats shifted = x + 12582912.0f; /* 1.5 * 2^23: rounds to an integer, kept in the low bits */
    const Floats f = x - (shifted - 12582912.0f);
    Floats p = f * 1.326472720e-3f + 9.671512640e-3f; /* minimax on [-1/2, 1/2] with p(0) = 1 */
    p = p * f + 5.550733743e-2f;
    p = p * f + 2.402224209e-1f;
    p = p * f + 6.931469776e-1f;
    p = p * f + 1.0f;
    p = p * (Floats)((Words)((Words)shifted << 23) + (127u << 23));
    *values = (Floats)((Ints)p & ~(Ints)(x < -126.0f));
}

/* LANES numbers of kind `dtype`, which is known when this is compiled, as floats. */
INLINE void NAME(load)(Floats *to, const void *numbers, int64_t index, const int dtype) {
    if (dtype == FLOAT32) {
        *to = READ((const float *)numbers + index);
        return;
    }
    if (dtype == INT8) {
        const Bytes *bytes = (const Bytes *)((const int8_t *)numbers + index);
#ifdef WIDEN_INT8
        Ints whole;
        WIDEN_INT8(whole, *bytes);
#else
        const Ints whole = __builtin_convertvector(*bytes, Ints);
#endif
        *to = __builtin_convertvector(whole, Floats);
        return;
    }
    const Halves *halves = (const Halves *)((const uint16_t *)numbers + index);
#ifdef WIDEN_FLOAT16
    if (dtype == FLOAT16) {
        WIDEN_FLOAT16(*to, *halves);
        return;
    }
#endif
    const Words word = __builtin_convertvector(*halves, Words);
    if (dtype == BFLOAT16) {
        *to = (Floats)(word << 16);
        return;
    }
    /* float16: move exponent and mantissa into place, then correct the exponent's bias by a product, which also
     * normalises subnormals; infinities and NaN get the largest exponent, the sign comes last. */
    const Floats magnitude = (Floats)((word & 0x7fffu) << 13) * 5.192296858534828e33f; /* 2^112 */
    const Words endless = (Words)((word & 0x7c00u) == 0x7c00u) & 0x7f800000u;
    *to = (Floats)((Words)magnitude | endless | (word & 0x8000u) << 16);
}

/* The same for fewer than LANES numbers; the other lanes are zero. */
TARGET static __attribute__((noinline)) void NAME(load_some)(Floats *to, const void *numbers, int64_t index, int count,
                                                             int dtype) {
    float whole[LANES] = {0};
    uint16_t half[LANES] = {0};
    if (dtype == FLOAT32)
        memcpy(whole, (const float *)numbers + index, sizeof(float) * (size_t)count);
    else
        memcpy(half, (const uint16_t *)numbers + index, sizeof(uint16_t) * (size_t)count);
    switch (dtype) {
    case FLOAT32: *to = READ(whole); break;
    case FLOAT16: NAME(load)(to, half, 0, FLOAT16); break;
    default: NAME(load)(to, half, 0, BFLOAT16);
    }
}

/* One stage of a transposition by exchange: after the stages 1, 2, 4, ... row i holds what was column i. */
#define FROM_UPPER(i, s) ((i) & (s) ? (i) - (s) + LANES : (i))
#define FROM_LOWER(i, s) ((i) & (s) ? (i) + LANES : (i) + (s))
#define EACH_4(f, i, s) f(i, s), f(i + 1, s), f(i + 2, s), f(i + 3, s)
#if LANES == 16
#define EACH(f, s) EACH_4(f, 0, s), EACH_4(f, 4, s), EACH_4(f, 8, s), EACH_4(f, 12, s)
#elif LANES == 8
#define EACH(f, s) EACH_4(f, 0, s), EACH_4(f, 4, s)
#else
#define EACH(f, s) EACH_4(f, 0, s)
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif
#define EXCHANGE(s)                                               \
    UNROLL for (int i = 0; i < LANES; i++) if (!(i & (s))) {      \
        const Floats upper = row[i], lower = row[i + (s)];        \
        row[i] = SHUFFLE(upper, lower, EACH(FROM_UPPER, s));      \
        row[i + (s)] = SHUFFLE(upper, lower, EACH(FROM_LOWER, s)); \
    }

/* The largest lane, and the sum of all: halves are folded onto each other until every lane has the result. */
#define PARTNER(i, s) ((i) ^ (s))
#define FOLD_LARGEST(s)                                         \
    {                                                           \
        const Floats other = SHUFFLE(x, x, EACH(PARTNER, s));   \
        const Ints keep = x > other;                            \
        x = (Floats)(((Ints)x & keep) | ((Ints)other & ~keep)); \
    }
#define FOLD_SUM(s) x += SHUFFLE(x, x, EACH(PARTNER, s));
#if LANES == 16
#define FOLD(fold) fold(8) fold(4) fold(2) fold(1)
#elif LANES == 8
#define FOLD(fold) fold(4) fold(2) fold(1)
#else
#define FOLD(fold) fold(2) fold(1)
#endif

INLINE float NAME(largest)(const Floats *values) {
    Floats x = *values;
    FOLD(FOLD_LARGEST)
    return x[0];
}

INLINE float NAME(total)(const Floats *values) {
    Floats x = *values;
    FOLD(FOLD_SUM)
    return x[0];
}
