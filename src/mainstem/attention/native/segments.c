/* Attention of query rows over keys and values that lie in the slots of a KV pool.
 *
 * A plan (made in Python, see plan.py beside this file) gives tasks; a task is a list of pieces that one thread runs in
 * order; a piece is some query rows and the stretch of keys that they share. A row's keys are named by slot numbers, so
 * it makes no difference where the cache put them or how it split them.
 *
 * Arithmetic. Keys are visited in blocks of BLOCK, counted from the sequence's first token, with the running maximum and
 * sum of Milakov and Gimelshein (2018). Every SPAN keys this starts afresh, and the spans of a row are merged in their
 * order, which lets several threads share one row. Within a block the score of a row and a key is one chain of fused
 * multiply-adds over the head's dimensions, and each output dimension one chain over the keys. All of this depends on
 * the row and its keys only: not on the other rows of the piece, nor on which thread ran it. So the result for a token
 * is bit for bit the same alone and in a batch, in a prefill and in a decode step, shared or not.
 *
 * The vector code is in segments_kernel.h, written with the vector extensions of GCC and Clang and compiled here once for
 * each instruction set; the caller picks one that the processor has. Threads come from the OpenMP runtime that PyTorch
 * has already loaded, so that the two never compete; without one, everything runs on the calling thread.
 */
#include <stdint.h>
#include <string.h>

#define BLOCK 64      /* keys whose scores are computed together */
#define SPAN 512      /* keys of one partial result; a multiple of BLOCK */
#define ROWS 6        /* rows whose scores are computed together */
#define LOWEST -1e30f /* below every score; finite, so that two of them can be subtracted */
#define LOG2_E 1.4426950408889634f

enum { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

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
} Work;

/* Rows of output and values are padded to whole vectors of any instruction set. */
static int64_t padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

extern void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned flags) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));

static void in_parallel(void (*run)(void *), Work *work) {
    if (GOMP_parallel && omp_get_thread_num && work->threads > 1)
        GOMP_parallel(run, work, (unsigned)work->threads, 0);
    else
        run(work);
}

static float *workspace_of_thread(const Work *work) {
    int thread = work->threads > 1 && omp_get_thread_num ? omp_get_thread_num() : 0;
    return work->workspace + work->workspace_stride * thread;
}

/* The portable form: 128-bit vectors, which NEON, SSE and most others have. */
#define LANES 4
#define COLUMNS 4
#define TARGET
#define NAME(x) x##_portable
#include "segments_kernel.h"

#if defined(__x86_64__)
#define LANES 8
#define COLUMNS 2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define NAME(x) x##_avx2
#include "segments_kernel.h"

#define LANES 16
#define COLUMNS 4
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define NAME(x) x##_avx512
#include "segments_kernel.h"
#endif

/* The name of instruction set number `index`, from the slowest to the fastest; NULL if the processor lacks it. */
const char *mainstem_instruction_set(int index) {
    if (index == 0) return "portable";
#if defined(__x86_64__)
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
    return 2 * BLOCK * padded(head_dim) + rows * group * (3 * padded(head_dim) + 5) + 64;
}

/* Compute a step's attention in one layer. */
void mainstem_attend(Work *work) {
    work->next_task = work->next_merge = 0;
    switch (work->instruction_set) {
#if defined(__x86_64__)
    case 2: attend_avx512(work); break;
    case 1: attend_avx2(work); break;
#endif
    default: attend_portable(work);
    }
}
