/* One pass over a tensor in CPU memory: everything a row needs. Sums run in the tensor's own type within a block that stays in the
 * cache, and in double across blocks; a block with a NaN, an infinity or extreme magnitudes is read again, value by value, in
 * double. Built by hatch_build.py when the package is installed, and loaded by native.py.
 *
 * The file is compiled with fast-math flags, so that reductions vectorise; NaN and infinity are found by their bits alone. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* A processor's own vector width is chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__ELF__) && !defined(ONE_WIDTH)
#define WIDTHS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDTHS
#endif

#define BLOCK 8192
#define CANCELLATION 4 /* how many times smaller than the mean square a variance may be */
#define PARALLEL_BLOCKS 16
#define NEAR 1e12 /* means beyond it are no pivots: float32 could not tell their neighbours apart */

#define THREADS 64 /* at most */

enum { F32 = 0, F64 = 1, BF16 = 2, F16 = 3 };

enum {
    PARAMETER_STEPS,
    PARAMETER_NORM,
    PARAMETER_SQUARE,
    PARAMETER_NORM_MAX,
    PARAMETER_ZEROS,
    PARAMETER_ELEMENTS,
    PARAMETER_NONFINITE_STEPS,
    PARAMETER_MISSING_STEPS,
    PARAMETER_RATIO,
    PARAMETER_RATIO_STEPS,
    PARAMETER_FIRST_NONFINITE,
    PARAMETER_RATIO_MAX,
    PARAMETER_UPDATES,
    PARAMETER_MOVED,
    PARAMETER_WEIGHT_NORM,
    PARAMETER_WEIGHT_RMS,
    PARAMETER_LOST,
    PARAMETER_WITH_GRADIENT,
    PARAMETER_COLUMNS
};

/* The columns of rows.py, in its order. */
enum { CALLS, COUNT, MEAN, M2, MIN, MAX, ZEROS, NONFINITE, SATURATED, SATURABLE, NORM, NORM_MAX, UNITS, FIRST_NONFINITE,
       MOMENT_COUNT, MOMENT_MEAN, MOMENT_M2, MOMENT_M3, MOMENT_M4, COLUMNS };

/* What the library was built from, and whether it reads float16. */
uint32_t source(void) { return SOURCE; }
#ifdef HAS_F16
int reads_half(void) { return 1; }
#else
int reads_half(void) { return 0; }
#endif

/* m2, m3 and m4: sums of powers of the deviations from the mean. */
typedef struct { double n, mean, m2, m3, m4, low, high, zeros, nonfinite; } part;

static inline uint32_t bits32(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline uint64_t bits64(double x) { uint64_t b; memcpy(&b, &x, 8); return b; }
static inline int finite32(float x) { return (bits32(x) & 0x7f800000u) != 0x7f800000u; }
static inline int finite64(double x) { return (bits64(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u; }
static inline int number32(float x) { return (bits32(x) & 0x7fffffffu) <= 0x7f800000u; } /* not a NaN */
static inline int number64(double x) { return (bits64(x) & 0x7fffffffffffffffu) <= 0x7ff0000000000000u; }
static inline float widen_bf16(uint16_t v) { uint32_t b = (uint32_t)v << 16; float x; memcpy(&x, &b, 4); return x; }

/* Sums of the powers of n values' deviations from a pivot, as those from their mean. */
static inline void center(double n, double s1, double s2, double s3, double s4, part *out) {
    double d = n ? s1 / n : 0, m2 = s2 - s1 * d, m4 = s4 - d * (4 * s3 - d * (6 * s2 - 3 * d * s1));
    out->m2 = m2 > 0 ? m2 : 0, out->m3 = s3 - d * (3 * s2 - 2 * d * s1), out->m4 = m4 > 0 ? m4 : 0;
}

/* Third and fourth powers of deviations from a mean, as those from a point that lies `by` below it: Pebay, "Formulas for robust,
 * one-pass parallel computation of covariances and arbitrary-order statistical moments" (2008). */
static inline double moved_m3(double n, double m2, double m3, double by) { return m3 + by * (3 * m2 + by * by * n); }
static inline double moved_m4(double n, double m2, double m3, double m4, double by) {
    return m4 + by * (4 * m3 + by * (6 * m2 + by * by * n));
}

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
    double mean = count ? sum / count * 4 : 0, m2 = 0, m3 = 0, m4 = 0;
    for (int i = 0; i < n; i++) {
        if (!finite64(x[i])) continue;
        double y = x[i] - mean, square = y * y;
        m2 += square, m3 += square * y, m4 += square * square;
    }
    out->n = count, out->mean = mean, out->m2 = m2, out->m3 = m3, out->m4 = m4, out->low = low, out->high = high;
    out->zeros = zeros, out->nonfinite = n - count;
}

/* Four streams at once: one alone would wait for each sum before it begins the next. Deviations are from a pivot near the mean,
 * most often the mean of the block before; where it was not near, they are taken again, from the mean. With MORE third and fourth
 * powers are added up as well; where these leave the range of the type, they are taken again too, of smaller or larger numbers. */
#define DEFINE_BLOCK(NAME, MORE, STORED, T, WIDEN, FINITE, HUGE_VALUE, TINY, LARGE, NEAR_ZERO, FAR)                 \
    WIDTHS static void NAME(const STORED *p, int n, double around, part *out) {                                     \
        T pivot = (T)around, scale = 1;                                                                             \
        T s[4] = {0, 0, 0, 0}, q[4] = {0, 0, 0, 0}, c[4] = {0, 0, 0, 0}, f[4] = {0, 0, 0, 0};                       \
        T l[4] = {HUGE_VALUE, HUGE_VALUE, HUGE_VALUE, HUGE_VALUE};                                                  \
        T h[4] = {-HUGE_VALUE, -HUGE_VALUE, -HUGE_VALUE, -HUGE_VALUE};                                              \
        int z[4] = {0, 0, 0, 0}, quarter = n / 4;                                                                   \
        for (int i = 0; i < quarter; i++) {                                                                         \
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) TAKE(WIDEN(p[i + k * quarter]), k, T, MORE)         \
        }                                                                                                           \
        for (int i = 4 * quarter; i < n; i++) TAKE(WIDEN(p[i]), 0, T, MORE)                                         \
        T shift = (s[0] + s[1]) + (s[2] + s[3]), square = (q[0] + q[1]) + (q[2] + q[3]);                            \
        T cube = (c[0] + c[1]) + (c[2] + c[3]), fourth = (f[0] + f[1]) + (f[2] + f[3]);                             \
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
        int extreme = MORE && peak > 0 && (peak < NEAR_ZERO || peak > FAR);                                         \
        if (rest * CANCELLATION < (double)square || extreme) {                                                      \
            pivot += shift / n, scale = extreme ? peak : 1, shift = 0, square = 0, cube = 0, fourth = 0;            \
            T inverse = 1 / scale;                                                                                  \
            for (int i = 0; i < n; i++) {                                                                           \
                T y = (WIDEN(p[i]) - pivot) * inverse, y2 = y * y;                                                  \
                shift += y;                                                                                         \
                square += y2;                                                                                       \
                if (MORE) cube += y2 * y, fourth += y2 * y2;                                                        \
            }                                                                                                       \
        }                                                                                                           \
        double to = scale;                                                                                          \
        center(n, shift, square, cube, fourth, out);                                                                \
        out->n = n, out->mean = (double)pivot + to * shift / n;                                                     \
        out->m2 *= to * to, out->m3 *= to * to * to, out->m4 *= to * to * to * to;                                  \
        out->low = low, out->high = high, out->zeros = (z[0] + z[1]) + (z[2] + z[3]), out->nonfinite = 0;           \
    }
#define TAKE(VALUE, K, T, MORE)                                                                                     \
    {                                                                                                               \
        T x = VALUE, y = x - pivot, y2 = y * y;                                                                     \
        s[K] += y;                                                                                                  \
        q[K] += y2;                                                                                                 \
        if (MORE) c[K] += y2 * y, f[K] += y2 * y2;                                                                  \
        l[K] = x < l[K] ? x : l[K];                                                                                 \
        h[K] = x > h[K] ? x : h[K];                                                                                 \
        z[K] += x == 0;                                                                                             \
    }

#define DEFINE_BLOCKS(NAME, ...) DEFINE_BOTH(NAME, __VA_ARGS__)
#define DEFINE_BOTH(NAME, ...) DEFINE_BLOCK(block_##NAME, 0, __VA_ARGS__) DEFINE_BLOCK(moments_##NAME, 1, __VA_ARGS__)
#define SAME(x) (x)
#define F32_RANGES FLT_MAX, 1e-15f, 1e15f, 1e-8f, 1e8f
#define F64_RANGES DBL_MAX, 1e-120, 1e120, 1e-60, 1e60
DEFINE_BLOCKS(f32, float, float, SAME, finite32, F32_RANGES)
DEFINE_BLOCKS(f64, double, double, SAME, finite64, F64_RANGES)
DEFINE_BLOCKS(bf16, uint16_t, float, widen_bf16, finite32, F32_RANGES)
#ifdef HAS_F16
DEFINE_BLOCKS(f16, _Float16, float, (float), finite32, F32_RANGES)
#endif

#define READ(NAME, STORED) (more ? moments_##NAME : block_##NAME)((const STORED *)data + start, n, around, out)
static void block(const void *data, int64_t start, int n, int type, int more, double around, part *out) {
    if (type == F32) READ(f32, float);
    else if (type == F64) READ(f64, double);
    else if (type == BF16) READ(bf16, uint16_t);
#ifdef HAS_F16
    else READ(f16, _Float16);
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

/* What is read in blocks, and by whom: each thread reads a share of the blocks and adds up its own part. */
typedef struct { const void *data; int64_t n; int type; double a, b; int more; } task;
typedef void reader(const task *, int64_t from, int64_t to, part *found);
typedef struct { const task *what; reader *read; int64_t blocks; part *found; } job;

static inline int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }
static inline int block_size(int64_t n, int64_t b) { return n - b * BLOCK < BLOCK ? (int)(n - b * BLOCK) : BLOCK; }

/* OpenMP's threads, where the process has them: torch's own, so that both share one pool. Weak, so that the library loads
 * without. */
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));

static void read_share(void *data) {
    job *j = data;
    int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    j->read(j->what, j->blocks * thread / threads, j->blocks * (thread + 1) / threads, &j->found[thread]);
}

static part read_all(const task *what, reader *read) {
    part found[THREADS], sum = {0, 0, 0, 0, 0, DBL_MAX, -DBL_MAX, 0, 0};
    int64_t blocks = blocks_of(what->n);
    if (blocks < PARALLEL_BLOCKS || !GOMP_parallel || !omp_get_max_threads || !omp_get_num_threads || !omp_get_thread_num) {
        read(what, 0, blocks, &sum);
        return sum;
    }
    int threads = omp_get_max_threads() < THREADS ? omp_get_max_threads() : THREADS;
    for (int t = 0; t < threads; t++) found[t] = sum;
    job j = {what, read, blocks, found};
    GOMP_parallel(read_share, &j, threads, 0);
    for (int t = 0; t < threads; t++) {
        const part *p = &found[t];
        sum.n += p->n, sum.mean += p->mean, sum.m2 += p->m2, sum.m3 += p->m3, sum.m4 += p->m4;
        sum.zeros += p->zeros, sum.nonfinite += p->nonfinite;
        sum.low = p->low < sum.low ? p->low : sum.low, sum.high = p->high > sum.high ? p->high : sum.high;
    }
    return sum;
}

/* Sums of deviations from a pivot, in `mean`, and of their powers, in `m2` to `m4`. */
static void read_moments(const task *what, int64_t from, int64_t to, part *found) {
    double pivot = what->a, around = fabs(pivot) < NEAR ? pivot : 0;
    for (int64_t b = from; b < to; b++) {
        part p;
        block(what->data, b * BLOCK, block_size(what->n, b), what->type, what->more, around, &p);
        around = fabs(p.mean) < NEAR ? p.mean : 0;
        double away = p.mean - pivot;
        found->n += p.n, found->zeros += p.zeros, found->nonfinite += p.nonfinite;
        found->mean += p.n * away;
        found->m2 += p.n ? p.m2 + p.n * away * away : 0;
        if (what->more && p.n) found->m3 += moved_m3(p.n, p.m2, p.m3, away), found->m4 += moved_m4(p.n, p.m2, p.m3, p.m4, away);
        found->low = p.low < found->low ? p.low : found->low;
        found->high = p.high > found->high ? p.high : found->high;
    }
}

/* Means are taken from a value of the tensor's own, so that their squares do not cancel. */
static part whole(const void *data, int64_t n, int type, int more) {
    double pivot = first_value(data, n, type);
    if (n <= BLOCK) {
        part p;
        block(data, 0, (int)n, type, more, fabs(pivot) < NEAR ? pivot : 0, &p);
        return p;
    }
    task what = {data, n, type, pivot, 0, more};
    part p = read_all(&what, read_moments);
    center(p.n, p.mean, p.m2, p.m3, p.m4, &p);
    p.mean = pivot + (p.n ? p.mean / p.n : 0);
    return p;
}

/* The summary of n values, without a row to put it into: needs no lock. */
void measure(const void *data, int64_t n, int type, int more, part *found) { *found = whole(data, n, type, more); }

/* Merge a summary's moments into those of a row. */
static void add_moments(const part *p, double *row) {
    double count = row[MOMENT_COUNT], m2 = row[MOMENT_M2], m3 = row[MOMENT_M3], m4 = row[MOMENT_M4], total = count + p->n;
    double delta = p->mean - row[MOMENT_MEAN], above = delta * (p->n / total), below = delta * (count / total);
    row[MOMENT_COUNT] = total;
    row[MOMENT_MEAN] += above;
    row[MOMENT_M2] = m2 + p->m2 + delta * below * p->n;
    row[MOMENT_M3] = moved_m3(count, m2, m3, -above) + moved_m3(p->n, p->m2, p->m3, below);
    row[MOMENT_M4] = moved_m4(count, m2, m3, m4, -above) + moved_m4(p->n, p->m2, p->m3, p->m4, below);
}

/* Merge a summary into a row, by the pairwise update of Chan, Golub and LeVeque (1979). */
static void into_row(const part *found, int more, double *row, double calls, double now, double units, double saturated,
                     double saturable) {
    part p = *found;
    row[CALLS] += calls;
    row[SATURATED] += saturated;
    row[SATURABLE] += saturable;
    if (units > row[UNITS]) row[UNITS] = units;
    row[ZEROS] += p.zeros;
    row[NONFINITE] += p.nonfinite;
    if (p.nonfinite > 0 && now < row[FIRST_NONFINITE]) row[FIRST_NONFINITE] = now;
    if (p.n == 0) return;
    if (more) add_moments(&p, row);
    double count = row[COUNT], total = count + p.n, delta = p.mean - row[MEAN];
    row[MEAN] += delta * (p.n / total);
    row[M2] += p.m2 + (count ? delta * delta * (count * p.n / total) : 0);
    row[COUNT] = total;
    if (p.low < row[MIN]) row[MIN] = p.low;
    if (p.high > row[MAX]) row[MAX] = p.high;
    double norm = sqrt(p.m2 + p.n * p.mean * p.mean);
    row[NORM] += norm;
    if (norm > row[NORM_MAX]) row[NORM_MAX] = norm;
}

void merge(const part *found, int more, double *row, double calls, double now, double units, double saturated, double saturable) {
    into_row(found, more, row, calls, now, units, saturated, saturable);
}

/* Both, in one call. */
void accumulate(const void *data, int64_t n, int type, int more, double *row, double calls, double now, double units,
                double saturated, double saturable) {
    part p = whole(data, n, type, more);
    into_row(&p, more, row, calls, now, units, saturated, saturable);
}

#define DEFINE_BEYOND(NAME, STORED, T, WIDEN, NUMBER)                                                                \
    WIDTHS static int NAME(const STORED *p, int n, T low, T high) {                                                 \
        int found = 0;                                                                                              \
        for (int i = 0; i < n; i++) {                                                                               \
            T x = WIDEN(p[i]);                                                                                      \
            found += ((x <= low) | (x >= high)) & NUMBER(x);                                                        \
        }                                                                                                           \
        return found;                                                                                               \
    }
DEFINE_BEYOND(beyond_f32, float, float, SAME, number32)
DEFINE_BEYOND(beyond_f64, double, double, SAME, number64)
DEFINE_BEYOND(beyond_bf16, uint16_t, float, widen_bf16, number32)
#ifdef HAS_F16
DEFINE_BEYOND(beyond_f16, _Float16, float, (float), number32)
#endif

static void read_beyond(const task *what, int64_t from, int64_t to, part *found) {
    float low = what->a < -FLT_MAX ? -INFINITY : (float)what->a, high = what->b > FLT_MAX ? INFINITY : (float)what->b;
    for (int64_t b = from; b < to; b++) {
        int n = block_size(what->n, b);
        if (what->type == F32) found->n += beyond_f32((const float *)what->data + b * BLOCK, n, low, high);
        else if (what->type == F64) found->n += beyond_f64((const double *)what->data + b * BLOCK, n, what->a, what->b);
        else if (what->type == BF16) found->n += beyond_bf16((const uint16_t *)what->data + b * BLOCK, n, low, high);
#ifdef HAS_F16
        else found->n += beyond_f16((const _Float16 *)what->data + b * BLOCK, n, low, high);
#endif
    }
}

/* How many values are at or below low, or at or above high; a bound that is not given is DBL_MAX away. */
int64_t beyond(const void *data, int64_t n, int type, double low, double high) {
    task what = {data, n, type, low, high, 0};
    return (int64_t)read_all(&what, read_beyond).n;
}

/* Mark the units that have a value other than zero; returns how many have not fired yet. The values lie as
 * (outer, units, inner). A unit marked before is not read again. A NaN fires. */
WIDTHS int64_t fired(const void *data, int type, int64_t outer, int64_t units, int64_t inner, uint8_t *known) {
    int64_t never_fired = 0;
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
    for (int64_t u = 0; u < units; u++) never_fired += !known[u];
    return never_fired;
}

/* The sum of squares of a block, in float, and its zeros, where they are asked for. */
WIDTHS static float squares_f32(const float *p, int n, int *zeros) {
    float s = 0, q[4] = {0, 0, 0, 0};
    int z = 0, none[4] = {0, 0, 0, 0}, quarter = n / 4;
    if (zeros)
        for (int i = 0; i < quarter; i++) {
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
                float x = p[i + k * quarter];
                q[k] += x * x, none[k] += x == 0;
            }
        }
    else
        for (int i = 0; i < quarter; i++) {
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) q[k] += p[i + k * quarter] * p[i + k * quarter];
        }
    for (int i = 4 * quarter; i < n; i++) s += p[i] * p[i], z += p[i] == 0;
    for (int k = 0; k < 4; k++) s += q[k], z += none[k];
    if (zeros) *zeros = z;
    return s;
}

/* Squares in `m2`, and zeros if `a` is not 0. */
static void read_squares(const task *what, int64_t from, int64_t to, part *found) {
    for (int64_t b = from; b < to; b++) {
        int n = block_size(what->n, b), zeros = 0;
        if (what->type == F32) {
            float s = squares_f32((const float *)what->data + b * BLOCK, n, what->a ? &zeros : 0);
            if (s > 1e-20f && s < 1e30f && finite32(s)) {
                found->m2 += s, found->zeros += zeros;
                continue;
            }
        }
        part p;
        block(what->data, b * BLOCK, n, what->type, 0, 0, &p);
        found->m2 += p.m2 + p.n * p.mean * p.mean, found->zeros += p.zeros, found->nonfinite += p.nonfinite;
    }
}

/* The L2 norm of each of k tensors of one type, and, unless zeros is NULL, how many of its values are zero. A norm is NaN where
 * a value is not finite. */
void norms(const int64_t *addresses, const int64_t *sizes, int64_t k, int type, double *norm, double *zeros) {
    for (int64_t t = 0; t < k; t++) {
        task what = {(const void *)(intptr_t)addresses[t], sizes[t], type, zeros != 0, 0, 0};
        part p = read_all(&what, read_squares);
        norm[t] = p.nonfinite > 0 ? (double)NAN : sqrt(p.m2);
        if (zeros) zeros[t] = p.zeros;
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

/* Of each of k tensors |now - then|, |then| and the root mean square then, from what sample() took of them then: out is (3, k).
 * Norms are those of all sizes[t] values, which the sample stands for. */
WIDTHS void updates(const int64_t *addresses, const int64_t *counts, const int64_t *strides, const int64_t *sizes, int64_t k, int type,
             const void *buffer, double *out) {
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
        double share = n > 0 ? (double)sizes[t] / n : (double)NAN;
        out[t] = n > 0 ? sqrt(update * share) : share, out[k + t] = sqrt(weight * share), out[2 * k + t] = sqrt(weight / (n + !n));
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

/* Enter k updates, as updates() gives them; those that are not finite do not count. */
void enter_updates(double *rows, const int64_t *indices, int64_t k, const double *found) {
    for (int64_t t = 0; t < k; t++) {
        double update = found[t], weight = found[k + t], ratio = update / weight; /* 0 / 0 for a weight of zeros */
        if (!finite64(update) || !finite64(weight)) continue;
        double *row = rows + indices[t] * PARAMETER_COLUMNS;
        row[PARAMETER_UPDATES] += 1;
        row[PARAMETER_MOVED] += update > 0;
        row[PARAMETER_WEIGHT_NORM] = weight;
        row[PARAMETER_WEIGHT_RMS] = found[2 * k + t];
        if (!finite64(ratio)) continue;
        row[PARAMETER_RATIO] += ratio;
        row[PARAMETER_RATIO_STEPS] += 1;
        if (ratio > row[PARAMETER_RATIO_MAX]) row[PARAMETER_RATIO_MAX] = ratio;
    }
}

/* Squares of each channel of a block's output, and, where the input is given, of the input and of the difference. The values lie as
 * (outer, channels, inner). Sums are in float over a few rows, then in double. */
#define STREAM_ROWS 32
#define STREAM_CHANNELS 1024
#define DEFINE_STREAM(NAME, STORED, T, WIDEN)                                                                        \
    WIDTHS static void NAME(const STORED *out, const STORED *in, int64_t stride, int64_t rows, int64_t n, double *square,   \
                            double *entered, double *written) {                                                     \
        T sums[STREAM_CHANNELS];                                                                                    \
        for (int64_t c = 0; c < n; c++) sums[c] = 0;                                                                \
        for (int64_t r = 0; r < rows; r++) {                                                                        \
            const STORED *p = out + r * stride, *q = in ? in + r * stride : 0;                                      \
            T x_in = 0, x_written = 0;                                                                              \
            if (q)                                                                                                  \
                for (int64_t c = 0; c < n; c++) {                                                                   \
                    T x = WIDEN(p[c]), y = WIDEN(q[c]), d = x - y;                                                  \
                    sums[c] += x * x, x_in += y * y, x_written += d * d;                                            \
                }                                                                                                   \
            else                                                                                                    \
                for (int64_t c = 0; c < n; c++) sums[c] += WIDEN(p[c]) * WIDEN(p[c]);                               \
            *entered += x_in, *written += x_written;                                                                \
        }                                                                                                           \
        for (int64_t c = 0; c < n; c++) square[c] += sums[c];                                                       \
    }
DEFINE_STREAM(stream_f32, float, float, SAME)
DEFINE_STREAM(stream_f64, double, double, SAME)
DEFINE_STREAM(stream_bf16, uint16_t, float, widen_bf16)
#ifdef HAS_F16
DEFINE_STREAM(stream_f16, _Float16, float, (float))
#endif

/* The same of n values of one channel that lie in a row. */
#define DEFINE_RUN(NAME, STORED, T, WIDEN)                                                                          \
    WIDTHS static void NAME(const STORED *p, const STORED *q, int64_t n, double *square, double *entered, double *written) { \
        T out[4] = {0, 0, 0, 0}, in[2] = {0, 0}, both[2] = {0, 0};                                                  \
        if (q) {                                                                                                    \
            int64_t half = n / 2;                                                                                   \
            for (int64_t i = 0; i < half; i++) {                                                                    \
                _Pragma("GCC unroll 2") for (int k = 0; k < 2; k++) RUN(p[i + k * half], q[i + k * half], k, T, WIDEN) \
            }                                                                                                       \
            if (n % 2) RUN(p[n - 1], q[n - 1], 0, T, WIDEN)                                                         \
        } else {                                                                                                    \
            int64_t quarter = n / 4;                                                                                \
            for (int64_t i = 0; i < quarter; i++) {                                                                 \
                _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) out[k] += WIDEN(p[i + k * quarter]) * WIDEN(p[i + k * quarter]); \
            }                                                                                                       \
            for (int64_t i = 4 * quarter; i < n; i++) out[0] += WIDEN(p[i]) * WIDEN(p[i]);                          \
        }                                                                                                           \
        *square += (double)out[0] + out[1] + out[2] + out[3];                                                       \
        *entered += (double)in[0] + in[1], *written += (double)both[0] + both[1];                                   \
    }
#define RUN(OUT, IN, K, T, WIDEN)                                                                                   \
    {                                                                                                               \
        T x = WIDEN(OUT), y = WIDEN(IN), d = x - y;                                                                 \
        out[K] += x * x, in[K] += y * y, both[K] += d * d;                                                          \
    }
DEFINE_RUN(run_f32, float, float, SAME)
DEFINE_RUN(run_f64, double, double, SAME)
DEFINE_RUN(run_bf16, uint16_t, float, widen_bf16)
#ifdef HAS_F16
DEFINE_RUN(run_f16, _Float16, float, (float))
#endif

static void stream_part(const void *out, const void *in, int64_t at, int64_t stride, int64_t rows, int64_t n, int type,
                        double *square, double *entered, double *written) {
#define STREAM(NAME, STORED) \
    NAME((const STORED *)out + at, in ? (const STORED *)in + at : 0, stride, rows, n, square, entered, written)
    if (type == F32) STREAM(stream_f32, float);
    else if (type == F64) STREAM(stream_f64, double);
    else if (type == BF16) STREAM(stream_bf16, uint16_t);
#ifdef HAS_F16
    else STREAM(stream_f16, _Float16);
#endif
}

static void run(const void *out, const void *in, int64_t at, int64_t n, int type, double *square, double *totals) {
#define ONE_RUN(NAME, STORED) \
    NAME((const STORED *)out + at, in ? (const STORED *)in + at : 0, n, square, totals, totals + 1)
    if (type == F32) ONE_RUN(run_f32, float);
    else if (type == F64) ONE_RUN(run_f64, double);
    else if (type == BF16) ONE_RUN(run_bf16, uint16_t);
#ifdef HAS_F16
    else ONE_RUN(run_f16, _Float16);
#endif
}

/* The sum of squares of each channel, into square (zeros before); of the input and of what was added to it, into totals. */
void stream(const void *out, const void *in, int64_t outer, int64_t channels, int64_t inner, int type, double *square,
            double *totals) {
    if (inner == 1) {
        for (int64_t r = 0; r < outer; r += STREAM_ROWS)
            for (int64_t c = 0; c < channels; c += STREAM_CHANNELS) {
                int64_t rows = outer - r < STREAM_ROWS ? outer - r : STREAM_ROWS;
                int64_t n = channels - c < STREAM_CHANNELS ? channels - c : STREAM_CHANNELS;
                stream_part(out, in, r * channels + c, channels, rows, n, type, square + c, totals, totals + 1);
            }
        return;
    }
    for (int64_t o = 0; o < outer; o++)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t i = 0; i < inner; i += STREAM_CHANNELS) {
                int64_t n = inner - i < STREAM_CHANNELS ? inner - i : STREAM_CHANNELS;
                run(out, in, (o * channels + c) * inner + i, n, type, square + c, totals);
            }
}
