/* The parts of a step for which PyTorch's operators leave a CPU idle: attention over the slots of a KV pool, linear layers
 * for any number of rows, and what a decoder layer does between them.
 *
 * Attention. A plan (made by attention/native_tasks.py) gives tasks; a task is a list of pieces that one thread runs in
 * order; a piece is some query rows and the stretch of keys that they share. A row's keys are named by slot numbers, so
 * it makes no difference where the cache put them or how it split them. Keys are visited in blocks of BLOCK, counted
 * from the sequence's first token, with the running maximum and sum of Milakov and Gimelshein (2018). Every SPAN keys
 * this starts afresh, and the spans of a row are merged in their order, which lets several threads share one row. Within
 * a block the score of a row and a key is one chain of fused multiply-adds over the head's dimensions, and each output
 * dimension one chain over the keys.
 *
 * Linear layers. Weights lie in panels of PANEL outputs, (panels, inputs, PANEL), so that a product reads them once, from
 * the first byte to the last. Each output is one chain of fused multiply-adds over the inputs that begins with the bias, or
 * with nothing where outputs have a scale.
 *
 * So every result depends on its own row only: not on the other rows, nor on which thread ran it. A token's numbers are
 * bit for bit the same alone and in a batch, in a prefill and in a decode step, shared or not.
 *
 * The vector code is in the headers, written with the vector extensions of GCC and Clang and compiled here once for each
 * instruction set; the caller picks one that the processor has. Threads come from the OpenMP runtime that PyTorch has
 * already loaded, so that the two never compete; without one, everything runs on the calling thread.
 */
#include <stdint.h>
#include <string.h>

#define BLOCK 64      /* keys whose scores are computed together */
#define SPAN 512      /* keys of one partial result; a multiple of BLOCK */
#define ROWS 6        /* rows whose scores are computed together */
#define PANEL 32      /* outputs of a linear layer whose weights lie together */
#define BLOCK_INPUTS 32 /* inputs whose weights share a scale */
#define CACHE_LINE 64
#define PREFETCH 8    /* how many keys ahead memory is asked for */
#define MANY_ROWS 24  /* whose computation covers the time to fetch a block */
#define MAX_HEAD_DIM 256
#define ROWS_AT_ONCE 4 /* that a thread takes of the work between products */
#define LOWEST -1e30f /* below every score; finite, so that two of them can be subtracted */
#define LOG2_E 1.4426950408889634f

/* Numbers. The last two are blocks, for weights only: of each output BLOCK_INPUTS weights have a float16 scale, and in
 * BLOCKS4 a float16 minimum that is added to the product of the scale and a half byte; in BLOCKS8 it is a signed byte. */
enum { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, INT8 = 3, BLOCKS4 = 4, BLOCKS8 = 5 };

/* Rows [row_begin, row_end) and keys [key_begin, key_end) of a sequence whose slot numbers are `slots`.
 * key_begin is a multiple of BLOCK. If it is none of SPAN, the piece goes on from the rows' stored states.
 * A sweep covers all keys of its rows and writes their output; other pieces leave one state a row and span. */
typedef struct {
    const int32_t *slots;
    int32_t row_begin, row_end, key_begin, key_end, sweep, unused;
} Piece;

typedef struct {
    const float *q; /* (rows, kv_heads * group, head_dim), the last dimension contiguous */
    int64_t q_row_stride, q_head_stride;
    const void *keys, *values; /* (kv_heads, slots, head_dim), numbers of kind `dtype` */
    int64_t kv_head_stride;
    float *out; /* (rows, kv_heads * group, head_dim), contiguous */
    const Piece *pieces;
    const int32_t *tasks;       /* piece numbers; task t is pieces [tasks[t], tasks[t + 1]) */
    const int32_t *limits;      /* for each row, how many keys it sees */
    const int32_t *merged_rows; /* rows whose output is merged from states */
    const int64_t *states_at;   /* for each row, where its states begin, in states of one row and one KV head */
    float *states;
    float *workspace; /* workspace_stride floats a thread */
    int64_t workspace_stride;
    float scale;
    int32_t dtype, kv_heads, group, head_dim, num_tasks, num_merged, threads, instruction_set;
    int32_t next_task, next_merge; /* counters of the run */
} AttentionWork;

/* Rows of output and values are padded to whole vectors of any instruction set. */
static int64_t padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

typedef struct {
    const float *x;      /* (rows, inputs), contiguous */
    const void *weights; /* (panels, inputs, PANEL), numbers of kind `dtype` */
    const float *bias;   /* (panels * PANEL) */
    const float *scale;  /* (panels * PANEL): what an output is multiplied with before the bias is added; or NULL */
    float *y;            /* (rows, outputs), contiguous */
    float *workspace;    /* inputs * PANEL floats a thread, if dtype is not FLOAT32 */
    int64_t rows, inputs, outputs;
    int32_t dtype, threads, instruction_set, unused;
    int64_t next_panel; /* counter of the run */
} LinearWork;

/* Bytes of PANEL blocks, which lie side by side: PANEL scales; in BLOCKS4 PANEL minima and four rows of PANEL words, of
 * which the i-th has inputs 4 i to 4 i + 3 in the low halves of its bytes and those 16 inputs further in the high ones;
 * in BLOCKS8 a row of PANEL bytes for each input. */
static inline int64_t block_bytes(int dtype) {
    return dtype == BLOCKS4 ? PANEL * (4 + BLOCK_INPUTS / 2) : PANEL * (2 + BLOCK_INPUTS);
}

/* Bytes of a panel of weights. */
static inline int64_t panel_bytes(int dtype, int64_t inputs) {
    switch (dtype) {
    case FLOAT32: return 4 * PANEL * inputs;
    case INT8: return PANEL * inputs;
    case BLOCKS4:
    case BLOCKS8: return inputs / BLOCK_INPUTS * block_bytes(dtype);
    default: return 2 * PANEL * inputs;
    }
}

/* Work that is done row by row begins with this. */
typedef struct {
    int64_t rows, next_row; /* next_row: counter of the run */
    int32_t threads, instruction_set;
} RowWork;

/* x += added, if there is any; then y = x / root mean square of x, times weight. */
typedef struct {
    RowWork work;
    float *x;           /* (rows, width) */
    const float *added; /* (rows, width) or NULL */
    const float *weight; /* (width) */
    float *y;           /* (rows, width) */
    int64_t width;
    float epsilon;
} NormWork;

/* Queries, keys and values of a layer's joint product: the first two are normalised, if there are weights for that, and
 * rotated by their positions; queries go to q, keys and values to their slots. */
typedef struct {
    RowWork work;
    const float *qkv;                 /* (rows, heads + 2 * kv_heads, head_dim) */
    const float *cos, *sin;           /* (rows, head_dim) */
    const float *q_weight, *k_weight; /* (head_dim) or NULL */
    const int64_t *slots;             /* (rows) */
    float *q;                         /* (rows, heads, head_dim) */
    void *keys, *values;              /* (kv_heads, slots, head_dim), numbers of kind `dtype` */
    int64_t kv_head_stride;
    int32_t heads, kv_heads, head_dim, dtype;
    float epsilon;
    int32_t unused;
} RotateWork;

/* y = silu(gate) * up. */
typedef struct {
    RowWork work;
    const float *gate_up; /* (rows, 2, width) */
    float *y;             /* (rows, width) */
    int64_t width;
} GateWork;

/* The nearest 16-bit number, of two equally near ones the even; what is too large becomes infinite. */
static inline uint16_t float16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x477ff000u) return (uint16_t)(sign | (size > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (size >= 0x38800000u) return (uint16_t)(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13);
    /* Subnormal: a sum with 1/2 rounds to its last bit, which is that of the smallest float16. */
    float small;
    memcpy(&small, &size, sizeof small);
    small += 0.5f;
    memcpy(&bits, &small, sizeof bits);
    return (uint16_t)(sign | (bits - 0x3f000000u));
}

static inline uint16_t bfloat16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* `n` floats to index `at` of `numbers`, which are of kind `dtype`. */
static inline void store_numbers(const float *from, void *numbers, int64_t at, int n, int dtype) {
    uint16_t *halves = (uint16_t *)numbers + at;
    switch (dtype) {
    case FLOAT16:
        for (int i = 0; i < n; i++) halves[i] = float16_of(from[i]);
        break;
    case BFLOAT16:
        for (int i = 0; i < n; i++) halves[i] = bfloat16_of(from[i]);
        break;
    default: memcpy((float *)numbers + at, from, sizeof(float) * (size_t)n);
    }
}

extern void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned flags) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));

static void in_parallel(void (*run)(void *), void *work, int threads) {
    if (GOMP_parallel && omp_get_thread_num && threads > 1)
        GOMP_parallel(run, work, (unsigned)threads, 0);
    else
        run(work);
}

static int thread_number(int threads) { return threads > 1 && omp_get_thread_num ? omp_get_thread_num() : 0; }

/* The portable form: 128-bit vectors, which NEON, SSE and most others have. */
#define LANES 4
#define COLUMNS 4
#define LINEAR_ROWS 6
#define LINEAR_COLUMNS 4
#define TARGET
#define NAME(x) x##_portable
#include "vectors.h"
#include "attention.h"
#include "linear.h"
#include "layers.h"
#include "end.h"

#if defined(__x86_64__)
#define LANES 8
#define COLUMNS 2
#define LINEAR_ROWS 6
#define LINEAR_COLUMNS 2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define WIDEN_FLOAT16(to, halves) __asm__("vcvtph2ps %1, %0" : "=x"(to) : "m"(halves))
#define WIDEN_INT8(to, bytes) __asm__("vpmovsxbd %1, %0" : "=x"(to) : "m"(bytes))
#define NAME(x) x##_avx2
#include "vectors.h"
#include "attention.h"
#include "linear.h"
#include "layers.h"
#include "end.h"

#define LANES 16
#define COLUMNS 4
#define LINEAR_ROWS 12
#define LINEAR_COLUMNS 2
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define WIDEN_FLOAT16(to, halves) __asm__("vcvtph2ps %1, %0" : "=v"(to) : "m"(halves))
#define WIDEN_INT8(to, bytes) __asm__("vpmovsxbd %1, %0" : "=v"(to) : "m"(bytes))
#define SMALL_NUMBERS(to, words, numbers) __asm__("vpermps %2, %1, %0" : "=v"(to) : "v"(words), "v"(numbers))
#define NAME(x) x##_avx512
#include "vectors.h"
#include "attention.h"
#include "linear.h"
#include "layers.h"
#include "end.h"
#endif

#ifdef SOURCE_MARK
/* Says which sources this was built from: see build.py. */
const char mainstem_source[] = SOURCE_MARK;
#endif

/* The name of instruction set number `index`, from the slowest to the fastest; NULL if the processor lacks it. */
const char *mainstem_instruction_set(int index) {
    if (index == 0) return "portable";
#if defined(__x86_64__)
    /* Every processor with AVX2 has F16C; Clang cannot ask for it. */
    if (index == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
    if (index == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "avx512";
#endif
    return 0;
}

/* Keys of a block and of a span, rows computed together: what a planner must know. */
int mainstem_block(void) { return BLOCK; }
int mainstem_span(void) { return SPAN; }
int mainstem_rows(void) { return ROWS; }

/* Floats of one state: the output so far, its maximum and its sum, for every query head of one KV head. */
int64_t mainstem_state_floats(int64_t head_dim, int64_t group) { return group * (padded(head_dim) + 2); }

/* Floats of workspace that a thread needs for pieces of at most `rows` rows. */
int64_t mainstem_workspace_floats(int64_t head_dim, int64_t group, int64_t rows) {
    return 3 * BLOCK * padded(head_dim) + rows * group * (3 * padded(head_dim) + 5) + 64;
}

int mainstem_panel(void) { return PANEL; }

/* The functions of an instruction set. */
typedef struct {
    void (*tasks)(void *), (*merges)(void *), (*panels)(void *);
    void (*norm)(void *, int64_t), (*rotate)(void *, int64_t), (*gate)(void *, int64_t);
} Functions;

#define FUNCTIONS(set) \
    (Functions) { run_tasks_##set, run_merges_##set, run_panels_##set, norm_row_##set, rotate_row_##set, gate_row_##set }

static Functions functions_of(int instruction_set) {
    switch (instruction_set) {
#if defined(__x86_64__)
    case 2: return FUNCTIONS(avx512);
    case 1: return FUNCTIONS(avx2);
#endif
    default: return FUNCTIONS(portable);
    }
}

/* Compute a step's attention in one layer. */
void mainstem_attend(AttentionWork *work) {
    const Functions run = functions_of(work->instruction_set);
    work->next_task = work->next_merge = 0;
    in_parallel(run.tasks, work, work->threads);
    if (work->num_merged) in_parallel(run.merges, work, work->threads);
}

/* Compute a linear layer. */
void mainstem_linear(LinearWork *work) {
    work->next_panel = 0;
    in_parallel(functions_of(work->instruction_set).panels, work, work->threads);
}

typedef struct {
    RowWork *work;
    void (*row)(void *, int64_t);
} RowLoop;

static void run_rows(void *argument) {
    const RowLoop *loop = argument;
    for (;;) {
        const int64_t begin = __atomic_fetch_add(&loop->work->next_row, ROWS_AT_ONCE, __ATOMIC_RELAXED);
        if (begin >= loop->work->rows) break;
        const int64_t left = loop->work->rows - begin;
        for (int64_t row = begin; row < begin + (left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE); row++)
            loop->row(loop->work, row);
    }
}

static void for_each_row(RowWork *work, void (*row)(void *, int64_t)) {
    RowLoop loop = {work, row};
    work->next_row = 0;
    in_parallel(run_rows, &loop, work->rows > ROWS_AT_ONCE ? work->threads : 1);
}

/* The work between products; each struct says what it computes. */
void mainstem_norm(NormWork *work) { for_each_row(&work->work, functions_of(work->work.instruction_set).norm); }
void mainstem_rotate(RotateWork *work) { for_each_row(&work->work, functions_of(work->work.instruction_set).rotate); }
void mainstem_gate(GateWork *work) { for_each_row(&work->work, functions_of(work->work.instruction_set).gate); }
