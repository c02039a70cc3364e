// Beats of 64 bytes, as a port of 512 bits moves them, and rows that are read and written in beats. Every pointer of every
// kernel is one to beats: a port whose pointers differ in width gets no bursts (HLS 200-451).
//
// Lanes are members of a struct, which Vitis packs into the port's width; slices of one wide integer say the same, but take
// g++ a thousand times as long to run.
#pragma once

#include <cstdint>

#include "numbers.h"

namespace gt {

constexpr int FLOATS = 16;
constexpr int HALVES = 32;
constexpr int BYTES = 64;

constexpr int DOUBLES = 8;

struct floats_t {
    float v[FLOATS];
};
struct words_t {
    int32_t v[FLOATS];
};
struct doubles_t {
    double v[DOUBLES];
};
struct halves_t {
    int16_t v[HALVES];
};
struct bytes_t {
    int8_t v[BYTES];
};

// Memory on the chip that is too large for a thread's stack when it is software.
// GT_KEPT also keeps its values from call to call.
#ifdef __SYNTHESIS__
#define GT_ONCHIP
#define GT_KEPT static
#else
#define GT_ONCHIP static thread_local
#define GT_KEPT static thread_local
#endif

inline int beats(int elements, int lanes) { return (elements + lanes - 1) / lanes; }
inline int smaller(int a, int b) { return a < b ? a : b; }

// Single numbers of an array of beats, read a beat at a time: as long as they follow one another, memory is asked once
// for LANES of them.
template <typename Beat, typename T>
class Reader {
  public:
    explicit Reader(const Beat *from) : from(from), held(), at(-1) {}
    T operator[](long i) {
        constexpr int lanes = sizeof(Beat) / sizeof(T);
        if (i / lanes != at) {
            at = i / lanes;
            held = from[at];
        }
        return held.v[i % lanes];
    }

  private:
    const Beat *from;
    Beat held;
    long at;
};
typedef Reader<words_t, int32_t> Words;
typedef Reader<floats_t, float> Floats;

// Numbers written one after the other, from a whole beat on; zeros fill up the last one.
class FloatWriter {
  public:
    explicit FloatWriter(floats_t *to) : to(to), held(), at(-1) {}
    void put(long i, float value) {
        held.v[i % FLOATS] = value;
        at = i / FLOATS;
        if (i % FLOATS == FLOATS - 1) {
            flush();
        }
    }
    void flush() {
        if (at >= 0) {
            to[at] = held;
        }
        at = -1;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            held.v[lane] = 0.0f;
        }
    }

  private:
    floats_t *to;
    floats_t held;
    long at;
};

// Columns of one row of a register, at most N of them. They lie in `v` as they lay in their beats: the first at `shift`.
template <int N>
struct Row {
    float v[N + 2 * FLOATS];
    int shift;

    float operator[](int column) const { return v[shift + column]; }

    void read(const floats_t *x, long first_beat, int start, int width) {
        shift = start % FLOATS;
        const long from = first_beat + start / FLOATS;
        const int count = beats(shift + width, FLOATS);
        for (int b = 0; b < count; b++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 514
            const floats_t beat = x[from + b];
            for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                v[b * FLOATS + lane] = beat.v[lane];
            }
        }
    }
};

// Writes `width` columns from the first one of a row; the last beat is filled up with zeros.
inline void write_row(floats_t *y, long first_beat, const float *values, int width) {
    const int count = beats(width, FLOATS);
    for (int b = 0; b < count; b++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 512
        floats_t beat;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            const int column = b * FLOATS + lane;
            beat.v[lane] = column < width ? values[column] : 0.0f;
        }
        y[first_beat + b] = beat;
    }
}

// The largest magnitude of `width` columns of a row, read so many at a time.
template <int CHUNK>
inline float peak_of(const floats_t *x, long first_beat, int start, int width) {
    Peak peak;
    for (int column = 0; column < width; column += CHUNK) {
        Row<CHUNK> in;
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
        const int wide = smaller(CHUNK, width - column);
        in.read(x, first_beat, start + column, wide);
        for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            peak.see(in[j]);
        }
    }
    return peak.value();
}

}  // namespace gt
