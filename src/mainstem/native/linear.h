/* Linear layers for one instruction set: see native.c for what is computed, vectors.h for LANES, TARGET and NAME, and
 *   LINEAR_ROWS, LINEAR_COLUMNS  rows and vectors of outputs that are computed together: their product's number of sums
 *                                stays in registers.
 */

/* `n` rows times the columns [column, column + LINEAR_COLUMNS * LANES) of one panel; n is known when this is compiled. */
INLINE void NAME(linear_rows)(const int n, const float *x, int64_t inputs, const void *panel, int64_t offset,
                              const float *bias, const float *scale, float *y, int64_t y_stride, const int dtype) {
    Floats sum[LINEAR_ROWS][LINEAR_COLUMNS];
    UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
        UNROLL for (int r = 0; r < n; r++) sum[r][c] = scale ? (Floats){0} : READ(bias + c * LANES);
    for (int64_t k = 0; k < inputs; k++) {
        Floats w[LINEAR_COLUMNS];
        UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
            NAME(load)(&w[c], panel, offset + k * PANEL + c * LANES, dtype);
        UNROLL for (int r = 0; r < n; r++)
            UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++) sum[r][c] = w[c] * x[r * inputs + k] + sum[r][c];
    }
    if (scale)
        UNROLL for (int r = 0; r < n; r++)
            UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
                sum[r][c] = sum[r][c] * READ(scale + c * LANES) + READ(bias + c * LANES);
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++) AT(y + r * y_stride + c * LANES) = sum[r][c];
}

INLINE void NAME(linear_tile)(int n, const float *x, int64_t inputs, const void *panel, int64_t offset,
                              const float *bias, const float *scale, float *y, int64_t y_stride, const int dtype) {
    for (int column = 0; column < PANEL; column += LINEAR_COLUMNS * LANES) {
        const int64_t at = offset + column;
        const float *b = bias + column, *s = scale ? scale + column : 0;
        float *out = y + column;
        switch (n) {
#define TILE(rows) \
    case rows: NAME(linear_rows)(rows, x, inputs, panel, at, b, s, out, y_stride, dtype); break;
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5)
#if LINEAR_ROWS > 6
            TILE(6) TILE(7) TILE(8) TILE(9) TILE(10) TILE(11)
#endif
        default: NAME(linear_rows)(LINEAR_ROWS, x, inputs, panel, at, b, s, out, y_stride, dtype);
        }
    }
}

/* One function for each number type, so that the inner loops have no branches. */
TARGET static void NAME(linear_float32)(int n, const float *x, int64_t inputs, const void *panel, int64_t offset,
                                        const float *bias, const float *scale, float *y, int64_t y_stride) {
    NAME(linear_tile)(n, x, inputs, panel, offset, bias, scale, y, y_stride, FLOAT32);
}
TARGET static void NAME(linear_float16)(int n, const float *x, int64_t inputs, const void *panel, int64_t offset,
                                        const float *bias, const float *scale, float *y, int64_t y_stride) {
    NAME(linear_tile)(n, x, inputs, panel, offset, bias, scale, y, y_stride, FLOAT16);
}
TARGET static void NAME(linear_bfloat16)(int n, const float *x, int64_t inputs, const void *panel, int64_t offset,
                                         const float *bias, const float *scale, float *y, int64_t y_stride) {
    NAME(linear_tile)(n, x, inputs, panel, offset, bias, scale, y, y_stride, BFLOAT16);
}
TARGET static void NAME(linear_int8)(int n, const float *x, int64_t inputs, const void *panel, int64_t offset,
                                     const float *bias, const float *scale, float *y, int64_t y_stride) {
    NAME(linear_tile)(n, x, inputs, panel, offset, bias, scale, y, y_stride, INT8);
}

/* Rows times one panel of weights. */
TARGET static void NAME(linear_panel)(const LinearWork *work, int64_t panel, float *workspace) {
    const int64_t inputs = work->inputs;
    const void *weights = work->weights;
    int64_t offset = panel * inputs * PANEL;
    int dtype = work->dtype;
    if (dtype != FLOAT32 && work->rows > UNPACK_ROWS) {
        for (int64_t i = 0; i < inputs * PANEL; i += LANES) switch (dtype) {
            case FLOAT16: NAME(load)(&AT(workspace + i), weights, offset + i, FLOAT16); break;
            case BFLOAT16: NAME(load)(&AT(workspace + i), weights, offset + i, BFLOAT16); break;
            default: NAME(load)(&AT(workspace + i), weights, offset + i, INT8);
            }
        weights = workspace, offset = 0, dtype = FLOAT32;
    }
    float out[LINEAR_ROWS * PANEL];
    const int64_t first = panel * PANEL;
    const int64_t columns = work->outputs - first < PANEL ? work->outputs - first : PANEL;
    for (int64_t row = 0; row < work->rows; row += LINEAR_ROWS) {
        const int n = work->rows - row < LINEAR_ROWS ? (int)(work->rows - row) : LINEAR_ROWS;
        float *y = work->y + row * work->outputs + first;
        /* The last panel may be wider than the outputs that are left. */
        float *to = columns == PANEL ? y : out;
        const int64_t stride = columns == PANEL ? work->outputs : PANEL;
        const float *x = work->x + row * inputs, *bias = work->bias + first;
        const float *scale = work->scale ? work->scale + first : 0;
        switch (dtype) {
        case FLOAT16: NAME(linear_float16)(n, x, inputs, weights, offset, bias, scale, to, stride); break;
        case BFLOAT16: NAME(linear_bfloat16)(n, x, inputs, weights, offset, bias, scale, to, stride); break;
        case INT8: NAME(linear_int8)(n, x, inputs, weights, offset, bias, scale, to, stride); break;
        default: NAME(linear_float32)(n, x, inputs, weights, offset, bias, scale, to, stride);
        }
        if (to == out)
            for (int r = 0; r < n; r++)
                memcpy(y + r * work->outputs, out + r * PANEL, sizeof(float) * (size_t)columns);
    }
}

TARGET static void NAME(run_panels)(void *argument) {
    LinearWork *work = argument;
    float *workspace = work->workspace + work->inputs * PANEL * thread_number(work->threads);
    const int64_t panels = (work->outputs + PANEL - 1) / PANEL;
    for (;;) {
        const int64_t panel = __atomic_fetch_add(&work->next_panel, 1, __ATOMIC_RELAXED);
        if (panel >= panels) break;
        NAME(linear_panel)(work, panel, workspace);
    }
}
