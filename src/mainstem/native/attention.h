/* Attention for one instruction set: see native.c for what is computed, vectors.h for LANES, TARGET and NAME, and
 *   COLUMNS  vectors of keys (or dimensions) that are computed together with ROWS rows: ROWS * COLUMNS sums stay in
 *            registers.
 */

/* Ask for the keys and values in `count` slots: they lie anywhere, and only we know what comes next. */
INLINE void NAME(prefetch)(const AttentionWork *work, int head, const int32_t *slots, int count) {
    const int64_t size = work->dtype == FLOAT32 ? 4 : 2, row = work->head_dim * size;
    const int64_t base = head * work->kv_head_stride * size;
    for (int i = 0; i < count; i++)
        for (int64_t at = base + slots[i] * row, end = at + row; at < end; at += CACHE_LINE) {
            __builtin_prefetch((const char *)work->keys + at, 0, 2);
            __builtin_prefetch((const char *)work->values + at, 0, 2);
        }
}

/* Copy the keys and values of a block to k and v, (BLOCK, padded head_dim), as floats. `ahead` slots after the block's are
 * asked for in time. */
INLINE void NAME(copy_block)(const AttentionWork *work, int head, const int32_t *slots, int count, int ahead, float *k,
                             float *v, const int dtype) {
    const int dim = work->head_dim, width = (int)padded(dim), whole = dim / LANES * LANES;
    const int64_t base = head * work->kv_head_stride;
    for (int key = 0; key < count; key++) {
        if (key + PREFETCH < count + ahead) NAME(prefetch)(work, head, slots + key + PREFETCH, 1);
        const int64_t from = base + (int64_t)slots[key] * dim;
        const int to = key * width;
        for (int d = 0; d < whole; d += LANES) {
            NAME(load)(&AT(k + to + d), work->keys, from + d, dtype);
            NAME(load)(&AT(v + to + d), work->values, from + d, dtype);
        }
        if (whole < dim) {
            NAME(load_some)(&AT(k + to + whole), work->keys, from + whole, dim - whole, dtype);
            NAME(load_some)(&AT(v + to + whole), work->values, from + whole, dim - whole, dtype);
        }
    }
}

/* k, (BLOCK, width), to k_t, (width, BLOCK). */
INLINE void NAME(transpose)(const float *k, float *k_t, int count, int width) {
    for (int key = 0; key < count; key += LANES)
        for (int d = 0; d < width; d += LANES) {
            Floats row[LANES];
            UNROLL for (int i = 0; i < LANES; i++) row[i] = READ(k + (key + i) * width + d);
            EXCHANGE(1)
            EXCHANGE(2)
#if LANES > 4
            EXCHANGE(4)
#endif
#if LANES > 8
            EXCHANGE(8)
#endif
            UNROLL for (int i = 0; i < LANES; i++) AT(k_t + (d + i) * BLOCK + key) = row[i];
        }
}

/* The keys of a block to k_t, (padded head_dim, BLOCK), its values to v, (BLOCK, padded head_dim), as floats. */
TARGET static void NAME(gather_block)(const AttentionWork *work, int head, const int32_t *slots, int count, int ahead,
                                      float *k, float *k_t, float *v) {
    switch (work->dtype) {
    case FLOAT16: NAME(copy_block)(work, head, slots, count, ahead, k, v, FLOAT16); break;
    case BFLOAT16: NAME(copy_block)(work, head, slots, count, ahead, k, v, BFLOAT16); break;
    default: NAME(copy_block)(work, head, slots, count, ahead, k, v, FLOAT32);
    }
    NAME(transpose)(k, k_t, count, (int)padded(work->head_dim));
}

/* The rows of a piece while a thread works on them: `count` of them, one for each token and query head. */
typedef struct {
    int count;
    float *q;             /* (count, head_dim), scaled for exponentials of base 2 */
    float *o;             /* (count, padded head_dim), output of the span so far, not normalised */
    float *top, *sum;     /* (count), largest score and sum of exponentials of the span */
    const int32_t *limit; /* (count), how many keys each sees */
} NAME(Rows);

/* `n` rows from the `first` on over one block; n is known when this is compiled. */
INLINE void NAME(attend_rows)(const int n, const NAME(Rows) *rows, int first, const float *k_t, const float *v,
                              int count, int block_begin, int dim, int width) {
    const float *q = rows->q + (int64_t)first * dim;
    float *o = rows->o + (int64_t)first * width, *top = rows->top + first, *sum = rows->sum + first;
    const int32_t *limit = rows->limit + first;
    float score[ROWS][BLOCK], fade[16];

    for (int key = 0; key < BLOCK; key += COLUMNS * LANES) {
        Floats dot[ROWS][COLUMNS];
        UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < COLUMNS; c++) dot[r][c] = (Floats){0};
        for (int d = 0; d < dim; d++) {
            Floats k[COLUMNS];
            UNROLL for (int c = 0; c < COLUMNS; c++) k[c] = READ(k_t + d * BLOCK + key + c * LANES);
            UNROLL for (int r = 0; r < n; r++)
                UNROLL for (int c = 0; c < COLUMNS; c++) dot[r][c] = k[c] * q[r * dim + d] + dot[r][c];
        }
        UNROLL for (int r = 0; r < n; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++) AT(&score[r][key + c * LANES]) = dot[r][c];
    }

    int fades = 0;
    memset(fade, 0, sizeof fade);
    for (int r = 0; r < n; r++) {
        const int visible = limit[r] - block_begin;
        if (visible < BLOCK)
            for (int key = visible > 0 ? visible : 0; key < BLOCK; key++) score[r][key] = -__builtin_inff();
        Floats best = READ(score[r]);
        UNROLL for (int key = LANES; key < BLOCK; key += LANES) {
            const Floats x = READ(&score[r][key]);
            const Ints keep = best > x;
            best = (Floats)(((Ints)best & keep) | ((Ints)x & ~keep));
        }
        const float largest = NAME(largest)(&best), before = top[r];
        top[r] = largest > before ? largest : before;
        fade[r] = before - top[r];
        fades |= fade[r] != 0;
    }
    UNROLL for (int i = 0; i < 16; i += LANES) NAME(exp2)(&AT(fade + i));
    for (int r = 0; r < n; r++) {
        Floats added = {0};
        UNROLL for (int key = 0; key < BLOCK; key += LANES) {
            Floats p = READ(&score[r][key]) - top[r];
            NAME(exp2)(&p);
            AT(&score[r][key]) = p;
            added += p;
        }
        sum[r] = __builtin_fmaf(sum[r], fade[r], NAME(total)(&added));
    }

#define VALUES_INTO_OUTPUT(columns)                                                                                \
    {                                                                                                              \
        Floats out[ROWS][columns];                                                                                 \
        UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < columns; c++) {                              \
            out[r][c] = READ(o + r * width + d + c * LANES);                                                       \
            if (fades) out[r][c] *= fade[r];                                                                       \
        }                                                                                                          \
        for (int key = 0; key < count; key++) {                                                                    \
            Floats x[columns];                                                                                     \
            UNROLL for (int c = 0; c < columns; c++) x[c] = READ(v + key * width + d + c * LANES);                 \
            UNROLL for (int r = 0; r < n; r++)                                                                     \
                UNROLL for (int c = 0; c < columns; c++) out[r][c] = x[c] * score[r][key] + out[r][c];             \
        }                                                                                                          \
        UNROLL for (int r = 0; r < n; r++)                                                                         \
            UNROLL for (int c = 0; c < columns; c++) AT(o + r * width + d + c * LANES) = out[r][c];                \
    }
    int d = 0;
    for (; d + COLUMNS * LANES <= width; d += COLUMNS * LANES) VALUES_INTO_OUTPUT(COLUMNS)
    for (; d < width; d += LANES) VALUES_INTO_OUTPUT(1)
}

/* All rows over one block. Meanwhile the `ahead` slots after the block's are asked for, a few with every few rows. */
TARGET static void NAME(attend_block)(const AttentionWork *work, int head, const int32_t *slots, int ahead,
                                      const NAME(Rows) *rows, const float *k_t, const float *v, int count,
                                      int block_begin) {
    const int dim = work->head_dim, width = (int)padded(dim);
    const int share = ahead * ROWS / rows->count + 1;
    int first = 0;
    for (; first + ROWS <= rows->count; first += ROWS) {
        NAME(prefetch)(work, head, slots + count, ahead < share ? ahead : share);
        slots += ahead < share ? ahead : share;
        ahead -= ahead < share ? ahead : share;
        NAME(attend_rows)(ROWS, rows, first, k_t, v, count, block_begin, dim, width);
    }
    switch (rows->count - first) {
#define REST(n) \
    case n: NAME(attend_rows)(n, rows, first, k_t, v, count, block_begin, dim, width); break;
        REST(1) REST(2) REST(3) REST(4) REST(5)
    }
}

/* Merge the partial result (o, top, sum) of one row into another over earlier keys. */
TARGET static __attribute__((noinline)) void NAME(merge)(float *into, float *into_top, float *into_sum, const float *o, float top, float sum, int width) {
    float weight[16] = {0};
    const float largest = top > *into_top ? top : *into_top;
    weight[0] = *into_top - largest;
    weight[1] = top - largest;
    NAME(exp2)(&AT(weight));
    *into_top = largest;
    *into_sum = *into_sum * weight[0] + sum * weight[1];
    for (int d = 0; d < width; d += LANES) AT(into + d) = AT(into + d) * weight[0] + READ(o + d) * weight[1];
}

INLINE void NAME(write_output)(const AttentionWork *work, int row, int query_head, const float *o, float sum) {
    const int dim = work->head_dim;
    float *out = work->out + ((int64_t)row * work->kv_heads * work->group + query_head) * dim;
    for (int d = 0; d < dim; d++) out[d] = o[d] / sum;
}

/* Where the state of a row in the span of `key` is kept. */
INLINE float *NAME(state)(const AttentionWork *work, int row, int head, int key, int state_floats) {
    return work->states + ((work->states_at[row] + key / SPAN) * work->kv_heads + head) * state_floats;
}

TARGET static void NAME(run_piece)(const AttentionWork *work, const Piece *piece, int head, float *workspace) {
    const int dim = work->head_dim, width = (int)padded(dim), group = work->group;
    const int count = (piece->row_end - piece->row_begin) * group, state_floats = group * (width + 2);
    float *k = workspace, *k_t = k + BLOCK * width, *v = k_t + BLOCK * width, *q = v + BLOCK * width;
    float *o = q + (int64_t)count * width, *all = o + (int64_t)count * width;
    float *top = all + (int64_t)count * width, *sum = top + count, *all_top = sum + count, *all_sum = all_top + count;
    int32_t *limit = (int32_t *)(all_sum + count);
    const NAME(Rows) rows = {count, q, o, top, sum, limit};

    for (int i = 0; i < count; i++) {
        const int row = piece->row_begin + i / group;
        const float *from = work->q + row * work->q_row_stride + (head * group + i % group) * work->q_head_stride;
        for (int d = 0; d < dim; d++) q[(int64_t)i * dim + d] = from[d] * (work->scale * LOG2_E);
        limit[i] = work->limits[row];
        all_top[i] = LOWEST;
        all_sum[i] = 0;
    }
    memset(all, 0, sizeof(float) * (size_t)count * (size_t)width);
    if (dim < width) /* the padding of the values stays zero */
        memset(v, 0, sizeof(float) * BLOCK * (size_t)width);

    for (int begin = piece->key_begin; begin < piece->key_end;) {
        int end = begin / SPAN * SPAN + SPAN;
        if (end > piece->key_end) end = piece->key_end;
        if (begin % SPAN == 0) {
            memset(o, 0, sizeof(float) * (size_t)count * (size_t)width);
            for (int i = 0; i < count; i++) top[i] = LOWEST, sum[i] = 0;
        } else {
            for (int i = 0; i < count; i++) {
                if (limit[i] <= begin / SPAN * SPAN) continue;
                const float *s = NAME(state)(work, piece->row_begin + i / group, head, begin, state_floats);
                s += i % group * (width + 2);
                memcpy(o + (int64_t)i * width, s, sizeof(float) * (size_t)width);
                top[i] = s[width], sum[i] = s[width + 1];
            }
        }
        for (int block = begin; block < end; block += BLOCK) {
            const int keys = end - block < BLOCK ? end - block : BLOCK;
            const int32_t *slots = piece->slots + block;
            /* Many rows give the time to ask for the next block while they are computed; few rows wait for memory. */
            const int left = piece->key_end - block - keys, next = left < BLOCK ? left : BLOCK;
            const int many = count >= MANY_ROWS;
            NAME(gather_block)(work, head, slots, keys, many ? 0 : left, k, k_t, v);
            NAME(attend_block)(work, head, slots, many ? next : 0, &rows, k_t, v, keys, block);
        }
        for (int i = 0; i < count; i++) {
            const float *row_o = o + (int64_t)i * width;
            if (piece->sweep) {
                NAME(merge)(all + (int64_t)i * width, &all_top[i], &all_sum[i], row_o, top[i], sum[i], width);
            } else if (limit[i] > begin / SPAN * SPAN) { /* a row has no state of spans that it does not see */
                float *s = NAME(state)(work, piece->row_begin + i / group, head, begin, state_floats);
                s += i % group * (width + 2);
                memcpy(s, row_o, sizeof(float) * (size_t)width);
                s[width] = top[i], s[width + 1] = sum[i];
            }
        }
        begin = end;
    }
    if (piece->sweep)
        for (int i = 0; i < count; i++)
            NAME(write_output)(work, piece->row_begin + i / group, head * group + i % group, all + (int64_t)i * width,
                               all_sum[i]);
}

/* Merge a row's states, one for each span, in their order. */
TARGET static void NAME(merge_states)(const AttentionWork *work, int row, int head, float *all) {
    const int width = (int)padded(work->head_dim), state_floats = work->group * (width + 2);
    for (int g = 0; g < work->group; g++) {
        float top = LOWEST, sum = 0;
        memset(all, 0, sizeof(float) * (size_t)width);
        for (int key = 0; key < work->limits[row]; key += SPAN) {
            const float *s = NAME(state)(work, row, head, key, state_floats) + g * (width + 2);
            NAME(merge)(all, &top, &sum, s, s[width], s[width + 1], width);
        }
        NAME(write_output)(work, row, head * work->group + g, all, sum);
    }
}

TARGET static void NAME(run_tasks)(void *argument) {
    AttentionWork *work = argument;
    float *workspace = work->workspace + work->workspace_stride * thread_number(work->threads);
    for (;;) {
        const int i = __atomic_fetch_add(&work->next_task, 1, __ATOMIC_RELAXED);
        if (i >= work->num_tasks * work->kv_heads) break;
        const int task = i / work->kv_heads;
        for (int p = work->tasks[task]; p < work->tasks[task + 1]; p++)
            NAME(run_piece)(work, work->pieces + p, i % work->kv_heads, workspace);
    }
}

TARGET static void NAME(run_merges)(void *argument) {
    AttentionWork *work = argument;
    float *workspace = work->workspace + work->workspace_stride * thread_number(work->threads);
    for (;;) {
        const int i = __atomic_fetch_add(&work->next_merge, 1, __ATOMIC_RELAXED);
        if (i >= work->num_merged * work->kv_heads) break;
        NAME(merge_states)(work, work->merged_rows[i / work->kv_heads], i % work->kv_heads, workspace);
    }
}
