/* One pass over a tensor in CPU memory: everything a row needs. Compiled on the user's machine by native.py, which gives the
 * columns of a row as macros (COL_*). Sums run in the tensor's own type within a block that stays in the cache, and in double
 * across blocks; a block with a NaN, an infinity or extreme magnitudes is read again, value by value, in double.
 *
 * The file is compiled with fast-math flags, so that reductions vectorise; NaN and infinity are told by their bits alone. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 8192
#define CANCELLATION 4 /* how many times smaller than the mean square a variance may be */
#define PARALLEL_BLOCKS 16
#define NEAR 1e12 /* means beyond it are no pivots: float32 could not tell their neighbours apart */

enum { F32 = 0, F64 = 1, BF16 = 2, F16 = 3 };

typedef struct { double n, mean, m2, low, high, zeros, nonfinite; } part;

static inline uint32_t bits32(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline uint64_t bits64(double x) { uint64_t b; memcpy(&b, &x, 8); return b; }
static inline int finite32(float x) { return (bits32(x) & 0x7f800000u) != 0x7f800000u; }
static inline int finite64(double x) { return (bits64(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u; }
static inline int number32(float x) { return (bits32(x) & 0x7fffffffu) <= 0x7f800000u; } /* not a NaN */
static inline int number64(double x) { return (bits64(x) & 0x7fffffffffffffffu) <= 0x7ff0000000000000u; }
static inline float widen_bf16(uint16_t v) { uint32_t b = (uint32_t)v << 16; float x; memcpy(&x, &b, 4); return x; }

/* A block, value by value: exact whatever it holds. */
static void careful_block(const double *x, int n, part *out) {
    double sum = 0, low = DBL_MAX, high = -DBL_MAX;
    int count = 0, zeros = 0;
    for (int i = 0; i < n; i++) {
        if (!finite64(x[i])) continue;
        count++;
        sum += x[i] / 4; /* a quarter, lest the sum of huge doubles overflow sooner than it must */
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
        zeros += (bits64(x[i]) << 1) == 0;
    }
    double mean = count ? sum / count * 4 : 0, m2 = 0;
    for (int i = 0; i < n; i++)
        if (finite64(x[i])) m2 += (x[i] - mean) * (x[i] - mean);
    out->n = count, out->mean = mean, out->m2 = m2, out->low = low, out->high = high;
    out->zeros = zeros, out->nonfinite = n - count;
}

/* Four streams at once: one alone would wait for each sum before it begins the next. Deviations are from a pivot near the mean,
 * most often the mean of the block before; where it was not near, they are taken again, from the mean. */
#define DEFINE_BLOCK(NAME, STORED, T, WIDEN, FINITE, HUGE_VALUE, TINY, LARGE)                                        \
    static void NAME(const STORED *p, int n, double around, part *out) {                                            \
        T pivot = (T)around, s[4] = {0, 0, 0, 0}, q[4] = {0, 0, 0, 0};                                               \
        T l[4] = {HUGE_VALUE, HUGE_VALUE, HUGE_VALUE, HUGE_VALUE};                                                  \
        T h[4] = {-HUGE_VALUE, -HUGE_VALUE, -HUGE_VALUE, -HUGE_VALUE};                                              \
        int z[4] = {0, 0, 0, 0}, quarter = n / 4;                                                                   \
        for (int i = 0; i < quarter; i++) {                                                                         \
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) TAKE(WIDEN(p[i + k * quarter]), k, T)               \
        }                                                                                                           \
        for (int i = 4 * quarter; i < n; i++) TAKE(WIDEN(p[i]), 0, T)                                               \
        T shift = (s[0] + s[1]) + (s[2] + s[3]), square = (q[0] + q[1]) + (q[2] + q[3]);                            \
        T low = l[0], high = h[0];                                                                                  \
        for (int k = 1; k < 4; k++) low = l[k] < low ? l[k] : low, high = h[k] > high ? h[k] : high;                \
        T peak = -low > high ? -low : high;                                                                         \
        if (!FINITE(shift) || !FINITE(square) || !FINITE(peak) || peak > LARGE || (peak < TINY && peak > 0)) {      \
            double wide[BLOCK];                                                                                     \
            for (int i = 0; i < n; i++) wide[i] = WIDEN(p[i]);                                                      \
            careful_block(wide, n, out);                                                                            \
            return;                                                                                                 \
        }                                                                                                           \
        double rest = (double)square - (double)shift * shift / n;                                                   \
        if (rest * CANCELLATION < (double)square) {                                                                 \
            pivot += shift / n, shift = 0, square = 0;                                                              \
            for (int i = 0; i < n; i++) {                                                                           \
                T y = WIDEN(p[i]) - pivot;                                                                          \
                shift += y;                                                                                         \
                square += y * y;                                                                                    \
            }                                                                                                       \
            rest = (double)square - (double)shift * shift / n;                                                      \
        }                                                                                                           \
        out->n = n, out->mean = (double)pivot + (double)shift / n, out->m2 = rest > 0 ? rest : 0;                   \
        out->low = low, out->high = high, out->zeros = (z[0] + z[1]) + (z[2] + z[3]), out->nonfinite = 0;           \
    }
#define TAKE(VALUE, K, T)                                                                                            \
    {                                                                                                               \
        T x = VALUE, y = x - pivot;                                                                                 \
        s[K] += y;                                                                                                  \
        q[K] += y * y;                                                                                              \
        l[K] = x < l[K] ? x : l[K];                                                                                 \
        h[K] = x > h[K] ? x : h[K];                                                                                 \
        z[K] += x == 0;                                                                                             \
    }

#define SAME(x) (x)
DEFINE_BLOCK(block_f32, float, float, SAME, finite32, FLT_MAX, 1e-15f, 1e15f)
DEFINE_BLOCK(block_f64, double, double, SAME, finite64, DBL_MAX, 1e-120, 1e120)
DEFINE_BLOCK(block_bf16, uint16_t, float, widen_bf16, finite32, FLT_MAX, 1e-15f, 1e15f)
#ifdef HAS_F16
DEFINE_BLOCK(block_f16, _Float16, float, (float), finite32, FLT_MAX, 1e-15f, 1e15f)
#endif

static void block(const void *data, int64_t start, int n, int type, double around, part *out) {
    if (type == F32) block_f32((const float *)data + start, n, around, out);
    else if (type == F64) block_f64((const double *)data + start, n, around, out);
    else if (type == BF16) block_bf16((const uint16_t *)data + start, n, around, out);
#ifdef HAS_F16
    else block_f16((const _Float16 *)data + start, n, around, out);
#endif
}

static double value_at(const void *data, int64_t i, int type) {
#ifdef HAS_F16
    if (type == F16) return ((const _Float16 *)data)[i];
#endif
    return type == F32 ? ((const float *)data)[i] : type == F64 ? ((const double *)data)[i] : widen_bf16(((const uint16_t *)data)[i]);
}

/* The first value that is finite and whose square is; 0 if there is none. */
static double first_value(const void *data, int64_t n, int type) {
    for (int64_t i = 0; i < n; i++) {
        double x = value_at(data, i, type);
        if (finite64(x) && fabs(x) < 1e150) return x;
    }
    return 0;
}

/* Means are taken from a value of the tensor's own, so that their squares do not cancel. */
static part whole(const void *data, int64_t n, int type) {
    double count = 0, sum = 0, square = 0, low = DBL_MAX, high = -DBL_MAX, zeros = 0, bad = 0;
    double pivot = first_value(data, n, type);
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    double around = fabs(pivot) < NEAR ? pivot : 0;
    if (blocks == 1) {
        part p;
        block(data, 0, (int)n, type, around, &p);
        return p;
    }
#pragma omp parallel for schedule(static) if (blocks >= PARALLEL_BLOCKS) firstprivate(around)                          \
    reduction(+ : count, sum, square, zeros, bad) reduction(min : low) reduction(max : high)
    for (int64_t b = 0; b < blocks; b++) {
        part p;
        block(data, b * BLOCK, b + 1 < blocks ? BLOCK : (int)(n - b * BLOCK), type, around, &p);
        around = fabs(p.mean) < NEAR ? p.mean : 0;
        double away = p.mean - pivot;
        count += p.n, zeros += p.zeros, bad += p.nonfinite;
        sum += p.n * away;
        square += p.n ? p.m2 + p.n * away * away : 0;
        low = p.low < low ? p.low : low;
        high = p.high > high ? p.high : high;
    }
    double shift = count ? sum / count : 0, m2 = square - sum * shift;
    part p = {count, pivot + shift, m2 > 0 ? m2 : 0, low, high, zeros, bad};
    return p;
}

/* The summary of n values, without a row to put it into: needs no lock. */
void measure(const void *data, int64_t n, int type, part *found) { *found = whole(data, n, type); }

/* Merge a summary into a row, by the pairwise update of Chan, Golub and LeVeque (1979). */
void merge(const part *found, double *row, double calls, double now, double units, double saturated, double saturable) {
    part p = *found;
    row[COL_CALLS] += calls;
    row[COL_SATURATED] += saturated;
    row[COL_SATURABLE] += saturable;
    if (units > row[COL_UNITS]) row[COL_UNITS] = units;
    row[COL_ZEROS] += p.zeros;
    row[COL_NONFINITE] += p.nonfinite;
    if (p.nonfinite > 0 && now < row[COL_FIRST_NONFINITE]) row[COL_FIRST_NONFINITE] = now;
    if (p.n == 0) return;
    double count = row[COL_COUNT], total = count + p.n, delta = p.mean - row[COL_MEAN];
    row[COL_MEAN] += delta * (p.n / total);
    row[COL_M2] += p.m2 + (count ? delta * delta * (count * p.n / total) : 0);
    row[COL_COUNT] = total;
    if (p.low < row[COL_MIN]) row[COL_MIN] = p.low;
    if (p.high > row[COL_MAX]) row[COL_MAX] = p.high;
    double norm = sqrt(p.m2 + p.n * p.mean * p.mean);
    row[COL_NORM] += norm;
    if (norm > row[COL_NORM_MAX]) row[COL_NORM_MAX] = norm;
}

/* Both, in one call. */
void accumulate(const void *data, int64_t n, int type, double *row, double calls, double now, double units, double saturated,
                double saturable) {
    part p = whole(data, n, type);
    merge(&p, row, calls, now, units, saturated, saturable);
}

/* How many values are at or below low, or at or above high; a bound that is not given is DBL_MAX away. */
int64_t beyond(const void *data, int64_t n, int type, double low, double high) {
    int64_t found = 0;
    float low32 = low < -FLT_MAX ? -INFINITY : (float)low, high32 = high > FLT_MAX ? INFINITY : (float)high;
#define COUNT(STORED, T, WIDEN, NUMBER, LOW, HIGH)                                                                           \
    {                                                                                                               \
        const STORED *p = data;                                                                                     \
        _Pragma("omp parallel for schedule(static) if (n >= PARALLEL_BLOCKS * BLOCK) reduction(+ : found)")         \
        for (int64_t start = 0; start < n; start += BLOCK) {                                                        \
            int m = n - start < BLOCK ? (int)(n - start) : BLOCK, here = 0;                                         \
            for (int i = 0; i < m; i++) {                                                                           \
                T x = WIDEN(p[start + i]);                                                                          \
                here += ((x <= (LOW)) | (x >= (HIGH))) & NUMBER(x);                                                 \
            }                                                                                                       \
            found += here;                                                                                          \
        }                                                                                                           \
    }
    if (type == F32) COUNT(float, float, SAME, number32, low32, high32)
    else if (type == F64) COUNT(double, double, SAME, number64, low, high)
    else if (type == BF16) COUNT(uint16_t, float, widen_bf16, number32, low32, high32)
#ifdef HAS_F16
    else COUNT(_Float16, float, (float), number32, low32, high32)
#endif
    return found;
}

/* Mark the units that have a value other than zero; returns how many have not fired yet. The values lie as
 * (outer, units, inner). A unit marked before is not read again. A NaN fires. */
int64_t fired(const void *data, int type, int64_t outer, int64_t units, int64_t inner, uint8_t *known) {
    int64_t asleep = 0;
#define MARK(WORD, SIGN)                                                                                             \
    {                                                                                                               \
        const WORD *p = data;                                                                                       \
        if (inner == 1) {                                                                                           \
            for (int64_t o = 0; o < outer; o++)                                                                     \
                for (int64_t u = 0; u < units; u++) known[u] |= (p[o * units + u] & (SIGN)) != 0;                   \
        } else {                                                                                                    \
            for (int64_t u = 0; u < units; u++)                                                                     \
                for (int64_t o = 0; o < outer && !known[u]; o++) {                                                  \
                    const WORD *q = p + (o * units + u) * inner;                                                    \
                    WORD any = 0;                                                                                   \
                    for (int64_t i = 0; i < inner; i++) any |= q[i];                                                \
                    known[u] |= (any & (SIGN)) != 0;                                                                \
                }                                                                                                   \
        }                                                                                                           \
    }
    if (type == F32) MARK(uint32_t, 0x7fffffffu)
    else if (type == F64) MARK(uint64_t, 0x7fffffffffffffffu)
    else MARK(uint16_t, 0x7fffu)
    for (int64_t u = 0; u < units; u++) asleep += !known[u];
    return asleep;
}

/* The L2 norm of each of k tensors of one type, and, unless zeros is NULL, how many of its values are zero. A norm is NaN where
 * a value is not finite. */
void norms(const int64_t *addresses, const int64_t *sizes, int64_t k, int type, double *norm, double *zeros) {
    for (int64_t t = 0; t < k; t++) {
        const void *data = (const void *)(intptr_t)addresses[t];
        int64_t n = sizes[t], blocks = (n + BLOCK - 1) / BLOCK;
        double square = 0, none = 0, bad = 0;
#pragma omp parallel for schedule(static) if (blocks >= PARALLEL_BLOCKS) reduction(+ : square, none, bad)
        for (int64_t b = 0; b < blocks; b++) {
            int m = b + 1 < blocks ? BLOCK : (int)(n - b * BLOCK);
            if (type == F32) {
                const float *p = (const float *)data + b * BLOCK;
                float s = 0, q[4] = {0, 0, 0, 0};
                int z = 0, none_of[4] = {0, 0, 0, 0}, quarter = m / 4;
                if (zeros)
                    for (int i = 0; i < quarter; i++) {
                        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
                            float x = p[i + k * quarter];
                            q[k] += x * x, none_of[k] += x == 0;
                        }
                    }
                else
                    for (int i = 0; i < quarter; i++) {
                        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) q[k] += p[i + k * quarter] * p[i + k * quarter];
                    }
                for (int i = 4 * quarter; i < m; i++) s += p[i] * p[i], z += p[i] == 0;
                for (int k = 0; k < 4; k++) s += q[k], z += none_of[k];
                if (s > 1e-20f && s < 1e30f && finite32(s)) {
                    square += s, none += z;
                    continue;
                }
            }
            part p;
            block(data, b * BLOCK, m, type, 0, &p);
            square += p.m2 + p.n * p.mean * p.mean, none += p.zeros, bad += p.nonfinite;
        }
        norm[t] = bad > 0 ? (double)NAN : sqrt(square);
        if (zeros) zeros[t] = none;
    }
}

/* Copy counts[t] values of each of k tensors, strides[t] apart, one tensor after the other, into a buffer. */
void sample(const int64_t *addresses, const int64_t *counts, const int64_t *strides, int64_t k, int type, void *buffer) {
    char *out = buffer;
    size_t size = type == F64 ? 8 : 4;
    for (int64_t t = 0; t < k; t++) {
        const char *data = (const char *)(intptr_t)addresses[t];
        if (strides[t] == 1) memcpy(out, data, counts[t] * size);
        else if (type == F64)
            for (int64_t i = 0; i < counts[t]; i++) ((double *)out)[i] = ((const double *)data)[i * strides[t]];
        else
            for (int64_t i = 0; i < counts[t]; i++) ((float *)out)[i] = ((const float *)data)[i * strides[t]];
        out += counts[t] * size;
    }
}

/* |now - then| / |then| of each of k tensors, over what sample() took of them then. */
void ratios(const int64_t *addresses, const int64_t *counts, const int64_t *strides, int64_t k, int type, const void *buffer,
            double *out) {
    const char *then = buffer;
    for (int64_t t = 0; t < k; t++) {
        const char *data = (const char *)(intptr_t)addresses[t];
        int64_t n = counts[t], stride = strides[t];
        double update = 0, weight = 0;
#define COMPARE(T)                                                                                                   \
    for (int64_t i = 0; i < n; i++) {                                                                               \
        double was = ((const T *)then)[i], difference = (double)((const T *)data)[i * stride] - was;                \
        update += difference * difference, weight += was * was;                                                     \
    }
        if (type == F64) COMPARE(double)
        else COMPARE(float)
        out[t] = sqrt(update) / sqrt(weight); /* 0 / 0 for a weight of zeros */
        then += n * (type == F64 ? 8 : 4);
    }
}

/* Enter k measured gradients into the rows of their parameters (indices[t] is the row of the t-th), and the norm of them all into
 * the total of their optimizer: (finite steps, sum of norms). */
void enter(double *rows, const int64_t *indices, int64_t k, const double *norm, const double *zeros, const double *sizes,
           double global_step, double *total) {
    double square = 0;
    for (int64_t t = 0; t < k; t++) square += norm[t] * norm[t];
    if (finite64(square)) total[0] += 1, total[1] += sqrt(square);
    for (int64_t t = 0; t < k; t++) {
        double *row = rows + indices[t] * PARAMETER_COLUMNS;
        row[PARAMETER_ZEROS] += zeros[t];
        row[PARAMETER_ELEMENTS] += sizes[t];
        if (!finite64(norm[t])) {
            row[PARAMETER_NONFINITE_STEPS] += 1;
            if (global_step < row[PARAMETER_FIRST_NONFINITE]) row[PARAMETER_FIRST_NONFINITE] = global_step;
            continue;
        }
        row[PARAMETER_STEPS] += 1;
        row[PARAMETER_NORM] += norm[t];
        row[PARAMETER_SQUARE] += norm[t] * norm[t];
        if (norm[t] > row[PARAMETER_NORM_MAX]) row[PARAMETER_NORM_MAX] = norm[t];
    }
}

/* Enter k update ratios; those that are not finite do not count. */
void enter_ratios(double *rows, const int64_t *indices, int64_t k, const double *ratio) {
    for (int64_t t = 0; t < k; t++) {
        if (!finite64(ratio[t])) continue;
        double *row = rows + indices[t] * PARAMETER_COLUMNS;
        row[PARAMETER_RATIO] += ratio[t];
        row[PARAMETER_RATIO_STEPS] += 1;
    }
}
