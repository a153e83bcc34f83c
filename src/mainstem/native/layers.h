/* What a decoder layer does between its products and its attention, for one instruction set: see native.c for what is
 * computed, vectors.h for LANES, TARGET and NAME. Every function takes one row. */

/* The first `count` lanes to `p`; load_some is the way back. */
INLINE void NAME(write_some)(const Floats *from, float *p, int64_t count) {
    float lane[LANES];
    AT(lane) = *from;
    memcpy(p, lane, sizeof(float) * (size_t)count);
}

/* y = x / root of the mean of x² + epsilon, times weight. x and y may be the same. */
INLINE void NAME(normalize)(const float *x, const float *weight, float *y, int64_t width, float epsilon) {
    Floats squares = {0};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) squares = READ(x + i) * READ(x + i) + squares;
    if (i < width) {
        Floats rest;
        NAME(load_some)(&rest, x, i, (int)(width - i), FLOAT32);
        squares = rest * rest + squares;
    }
    const float scale = 1.0f / __builtin_sqrtf(NAME(total)(&squares) / (float)width + epsilon);
    for (i = 0; i + LANES <= width; i += LANES) AT(y + i) = READ(x + i) * scale * READ(weight + i);
    for (; i < width; i++) y[i] = x[i] * scale * weight[i];
}

TARGET static void NAME(norm_row)(void *argument, int64_t row) {
    const NormWork *work = argument;
    const int64_t width = work->width;
    float *x = work->x + row * width;
    if (work->added) {
        const float *added = work->added + row * width;
        for (int64_t i = 0; i < width; i++) x[i] += added[i];
    }
    NAME(normalize)(x, work->weight, work->y + row * width, width, work->epsilon);
}

/* Rotate one head by its position; `normed` is room for the head, `weight` may be NULL. */
INLINE void NAME(rotate)(const RotateWork *work, const float *head, const float *weight, const float *cos,
                         const float *sin, float *normed, float *to) {
    const int half = work->head_dim / 2;
    if (weight) {
        NAME(normalize)(head, weight, normed, work->head_dim, work->epsilon);
        head = normed;
    }
    for (int d = 0; d < half; d++) {
        const float low = head[d], high = head[d + half];
        to[d] = low * cos[d] - high * sin[d];
        to[d + half] = high * cos[d + half] + low * sin[d + half];
    }
}

TARGET static void NAME(rotate_row)(void *argument, int64_t row) {
    const RotateWork *work = argument;
    const int dim = work->head_dim, heads = work->heads, kv_heads = work->kv_heads;
    const float *from = work->qkv + row * (heads + 2 * kv_heads) * dim;
    const float *cos = work->cos + row * dim, *sin = work->sin + row * dim;
    const int64_t slot = work->slots[row] * dim;
    float normed[MAX_HEAD_DIM], rotated[MAX_HEAD_DIM];
    for (int h = 0; h < heads; h++)
        NAME(rotate)(work, from + h * dim, work->q_weight, cos, sin, normed, work->q + (row * heads + h) * dim);
    from += heads * dim;
    for (int h = 0; h < kv_heads; h++) {
        NAME(rotate)(work, from + h * dim, work->k_weight, cos, sin, normed, rotated);
        store_numbers(rotated, work->keys, h * work->kv_head_stride + slot, dim, work->dtype);
    }
    from += kv_heads * dim;
    for (int h = 0; h < kv_heads; h++)
        store_numbers(from + h * dim, work->values, h * work->kv_head_stride + slot, dim, work->dtype);
}

/* silu(gate) * up, where silu(x) = x / (1 + e^-x). */
INLINE void NAME(gated)(Floats *gate, const Floats *up) {
    const Floats x = *gate;
    const Ints negative = x < 0.0f;
    Floats e = (Floats)(((Ints)x & negative) | ((Ints)-x & ~negative)) * LOG2_E; /* of -|x| */
    NAME(exp2)(&e);
    const Floats one = (Floats){0} + 1.0f;
    const Floats top = (Floats)(((Ints)e & negative) | ((Ints)one & ~negative));
    *gate = x * (top / (e + 1.0f)) * *up;
}

TARGET static void NAME(gate_row)(void *argument, int64_t row) {
    const GateWork *work = argument;
    const int64_t width = work->width;
    const float *gate = work->gate_up + row * 2 * width, *up = gate + width;
    float *y = work->y + row * width;
    int64_t i = 0;
    for (; i < width; i += LANES) {
        Floats g, u;
        if (i + LANES <= width) {
            g = READ(gate + i), u = READ(up + i);
            NAME(gated)(&g, &u);
            AT(y + i) = g;
        } else {
            NAME(load_some)(&g, gate, i, (int)(width - i), FLOAT32);
            NAME(load_some)(&u, up, i, (int)(width - i), FLOAT32);
            NAME(gated)(&g, &u);
            NAME(write_some)(&g, y + i, width - i);
        }
    }
}
