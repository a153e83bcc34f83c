/* Linear layers for one instruction set: see native.c for what is computed, vectors.h for LANES, TARGET and NAME, and
 *   LINEAR_ROWS, LINEAR_COLUMNS  rows and vectors of outputs that are computed together: their product's number of sums
 *                                stays in registers;
 *   SMALL_NUMBERS(to, words, numbers)  its instruction that picks floats of 16 by the low half bytes of words, if any.
 */

/* Rows, at most LINEAR_ROWS of them, times one panel of weights of any kind. */
typedef struct {
    const float *x; /* (rows, inputs) */
    int64_t inputs;
    const void *weights;
    const float *bias, *scale; /* (PANEL); no scale if NULL */
    float *unpacked;           /* NULL, or where to leave the weights as floats, (inputs, PANEL) */
    float *y;
    int64_t y_stride;
} NAME(Tile);
#define Tile NAME(Tile)

/* One weight of each of LANES outputs, in blocks: the `i`-th byte's low half of words, or a byte. A scale of 11 bits times a
 * number of 8 is exact, so that a weight is rounded once, when a minimum is added. */
INLINE void NAME(half_byte_weights)(Floats *to, const Words *words, const int i, const Floats *scale,
                                    const Floats *minimum) {
    const Words shifted = *words >> 8 * i;
    Floats number;
#ifdef SMALL_NUMBERS
    const Floats numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    SMALL_NUMBERS(number, shifted, numbers);
#else
    number = __builtin_convertvector((Ints)(shifted & 15u), Floats);
#endif
    *to = number * *scale + *minimum;
}
INLINE void NAME(byte_weights)(Floats *to, const uint8_t *bytes, const Floats *scale) {
    NAME(load)(to, bytes, 0, INT8);
    *to *= *scale;
}

/* Add LANES * LINEAR_COLUMNS outputs' products with one input of each of `n` rows. */
INLINE void NAME(add_products)(const int n, Floats (*sum)[LINEAR_COLUMNS], const Floats *w, const float *x,
                               int64_t inputs, float *unpacked, const int unpack) {
    if (unpack) UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++) AT(unpacked + c * LANES) = w[c];
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++) sum[r][c] = w[c] * x[r * inputs] + sum[r][c];
}

/* Add the products with weights that are numbers of kind `dtype`. */
INLINE void NAME(add_numbers)(const int n, Floats (*sum)[LINEAR_COLUMNS], const Tile *tile, int64_t column,
                              const int dtype, const int unpack) {
    const int64_t inputs = tile->inputs;
    for (int64_t k = 0; k < inputs; k++) {
        Floats w[LINEAR_COLUMNS];
        UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
            NAME(load)(&w[c], tile->weights, k * PANEL + column + c * LANES, dtype);
        NAME(add_products)(n, sum, w, tile->x + k, inputs, tile->unpacked + k * PANEL + column, unpack);
    }
}

/* Add the products with weights in blocks. */
INLINE void NAME(add_blocks)(const int n, Floats (*sum)[LINEAR_COLUMNS], const Tile *tile, int64_t column,
                             const int dtype, const int unpack) {
    const int64_t inputs = tile->inputs;
    const uint8_t *block = tile->weights;
    float *unpacked = tile->unpacked + column;
    for (const float *x = tile->x, *end = x + inputs; x < end; block += block_bytes(dtype)) {
        Floats scale[LINEAR_COLUMNS], minimum[LINEAR_COLUMNS];
        UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++) {
            NAME(load)(&scale[c], block, column + c * LANES, FLOAT16);
            if (dtype == BLOCKS4) NAME(load)(&minimum[c], block, PANEL + column + c * LANES, FLOAT16);
        }
        for (int four = 0; four < BLOCK_INPUTS / 4; four++, x += 4, unpacked += 4 * PANEL) {
            Words words[LINEAR_COLUMNS];
            const uint8_t *from = block + 4 * PANEL + (four & 3) * 4 * PANEL + 4 * column;
            const uint8_t *bytes = block + 2 * PANEL + four * 4 * PANEL + column;
            if (dtype == BLOCKS4)
                UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
                    words[c] = *(const Words *)(from + 4 * c * LANES) >> (four & 4);
            UNROLL for (int i = 0; i < 4; i++) {
                Floats w[LINEAR_COLUMNS];
                UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
                    if (dtype == BLOCKS4)
                        NAME(half_byte_weights)(&w[c], &words[c], i, &scale[c], &minimum[c]);
                    else
                        NAME(byte_weights)(&w[c], bytes + i * PANEL + c * LANES, &scale[c]);
                NAME(add_products)(n, sum, w, x + i, inputs, unpacked + i * PANEL, unpack);
            }
        }
    }
}

/* `n` rows, columns [column, column + LINEAR_COLUMNS * LANES); n, dtype and unpack are known when this is compiled. */
INLINE void NAME(tile_rows)(const int n, const Tile *tile, int64_t column, const int dtype, const int unpack) {
    const float *bias = tile->bias + column, *scale = tile->scale ? tile->scale + column : 0;
    Floats sum[LINEAR_ROWS][LINEAR_COLUMNS];
    UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
        UNROLL for (int r = 0; r < n; r++) sum[r][c] = scale ? (Floats){0} : READ(bias + c * LANES);
    if (dtype == BLOCKS4 || dtype == BLOCKS8)
        NAME(add_blocks)(n, sum, tile, column, dtype, unpack);
    else
        NAME(add_numbers)(n, sum, tile, column, dtype, unpack);
    if (scale)
        UNROLL for (int r = 0; r < n; r++)
            UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++)
                sum[r][c] = sum[r][c] * READ(scale + c * LANES) + READ(bias + c * LANES);
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int c = 0; c < LINEAR_COLUMNS; c++) AT(tile->y + r * tile->y_stride + column + c * LANES) = sum[r][c];
}

/* One function for each kind of number and of rows, so that the inner loops have no branches. */
#if LINEAR_ROWS > 6
#define MORE_ROWS(each, dtype) \
    each(7, dtype) each(8, dtype) each(9, dtype) each(10, dtype) each(11, dtype) each(12, dtype)
#else
#define MORE_ROWS(each, dtype)
#endif
#define EACH_ROWS(each, dtype) \
    each(1, dtype) each(2, dtype) each(3, dtype) each(4, dtype) each(5, dtype) each(6, dtype) MORE_ROWS(each, dtype)
#define EACH_KIND(each) each(FLOAT32) each(FLOAT16) each(BFLOAT16) each(INT8) each(BLOCKS4) each(BLOCKS8)
#define DEFINE_TILE(rows, dtype)                                                                             \
    TARGET static __attribute__((noinline)) void NAME(tile_##dtype##_##rows)(const Tile *tile, int64_t column) { \
        NAME(tile_rows)(rows, tile, column, dtype, 0);                                                       \
    }
#define DEFINE_TILES(dtype)                                                                                  \
    EACH_ROWS(DEFINE_TILE, dtype)                                                                            \
    TARGET static __attribute__((noinline)) void NAME(unpack_##dtype)(const Tile *tile, int64_t column) {    \
        NAME(tile_rows)(LINEAR_ROWS, tile, column, dtype, dtype != FLOAT32);                                 \
    }
EACH_KIND(DEFINE_TILES)

#define TILE_NAME(rows, dtype) NAME(tile_##dtype##_##rows),
#define TILE_NAMES(dtype) {NAME(unpack_##dtype), EACH_ROWS(TILE_NAME, dtype)},
/* By kind of number and by rows; in place of none, for as many as fit and leaving the weights as floats. */
static void (*const NAME(tiles)[][LINEAR_ROWS + 1])(const Tile *, int64_t) = {EACH_KIND(TILE_NAMES)};

/* Rows times one panel of weights. Where there is more than one tile of rows, the first leaves the weights as floats for
 * the others. */
TARGET static void NAME(linear_panel)(const LinearWork *work, int64_t panel, float *workspace) {
    const int64_t first = panel * PANEL, outputs = work->outputs;
    const int64_t columns = outputs - first < PANEL ? outputs - first : PANEL;
    int dtype = work->dtype;
    /* The last panel may be wider than the outputs that are left. */
    float last[LINEAR_ROWS * PANEL];
    Tile tile = {
        .inputs = work->inputs,
        .weights = (const char *)work->weights + panel * panel_bytes(dtype, work->inputs),
        .bias = work->bias + first,
        .scale = work->scale ? work->scale + first : 0,
        .unpacked = dtype != FLOAT32 && work->rows > LINEAR_ROWS ? workspace : 0,
        .y_stride = columns < PANEL ? PANEL : outputs,
    };
    for (int64_t row = 0; row < work->rows; row += LINEAR_ROWS) {
        const int n = work->rows - row < LINEAR_ROWS ? (int)(work->rows - row) : LINEAR_ROWS;
        float *y = work->y + row * outputs + first;
        tile.x = work->x + row * work->inputs;
        tile.y = columns < PANEL ? last : y;
        for (int column = 0; column < PANEL; column += LINEAR_COLUMNS * LANES)
            NAME(tiles)[dtype][tile.unpacked ? 0 : n](&tile, column);
        if (tile.unpacked) tile.weights = tile.unpacked, tile.unpacked = 0, dtype = FLOAT32;
        if (tile.y == last)
            for (int r = 0; r < n; r++) memcpy(y + r * outputs, last + r * PANEL, sizeof(float) * (size_t)columns);
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
