// The systolic array of ../rtl as HLS sees it: gt_stream.v behind streams, a black box (blackbox/*.json) whose C++ is below.
//
// A tile is an output-stationary product: `depth` beats of ROWS activations and COLUMNS weights go in, one clock each, and
// COLUMNS columns of ROWS sums come out, the last column first. Two rows share a DSP (gt_dual_mac.v).
#pragma once

#include <cstdint>

#include "beats.h"
#include "stream.h"

namespace gt {

template <int LANES>
struct alignas(LANES) lanes_t {
    int8_t v[LANES];
};
template <int ROWS>
struct column_t {
    int32_t v[ROWS];
};

// Lane (i + by) % N of the result is lane i, in steps of a power of two: a barrel shifter. The transposing memories below
// are turned by row or column, so that a row and a column both meet each of their N banks once.
template <typename T, int N>
inline void rotate(const T from[N], int by, T to[N]) {
#pragma HLS INLINE
    T now[N], next[N];
    for (int i = 0; i < N; i++) {
#pragma HLS UNROLL
        now[i] = from[i];
    }
    for (int step = 1; step < N; step *= 2) {
#pragma HLS UNROLL
        const bool turned = by & step;
        for (int i = 0; i < N; i++) {
#pragma HLS UNROLL
            next[i] = turned ? now[(i - step) & (N - 1)] : now[i];
        }
        for (int i = 0; i < N; i++) {
#pragma HLS UNROLL
            now[i] = next[i];
        }
    }
    for (int i = 0; i < N; i++) {
#pragma HLS UNROLL
        to[i] = now[i];
    }
}

// Line `row` of a memory whose columns were turned by their number as they came in: one address a bank.
template <typename T, int COLUMNS, int ROWS>
inline void across(const T held[COLUMNS][ROWS], int row, T to[COLUMNS]) {
#pragma HLS INLINE
    static_assert(COLUMNS <= ROWS, "a bank holds each row once at most");
    T met[ROWS];
    for (int bank = 0; bank < ROWS; bank++) {
#pragma HLS UNROLL
        const int column = (bank - row) & (ROWS - 1);
        met[bank] = column < COLUMNS ? held[column][bank] : T();
    }
    rotate<T, ROWS>(met, -row, met);
    for (int column = 0; column < COLUMNS; column++) {
#pragma HLS UNROLL
        to[column] = met[column];
    }
}

// What `tiles` tiles of gt_stream.v compute; a test compares the two. Written for g++, which multiplies 16-bit lanes along the
// depth four times as fast as outer products.
template <int ROWS, int COLUMNS>
void tiles_of(hls::stream<lanes_t<ROWS>> &a, hls::stream<lanes_t<COLUMNS>> &w, hls::stream<column_t<ROWS>> &sums, int depth,
              int tiles) {
    constexpr int STEP = 256;
    static thread_local int16_t rows[ROWS][STEP], columns[COLUMNS][STEP];
    static thread_local int32_t acc[COLUMNS][ROWS];
    for (int tile = 0; tile < tiles; tile++) {
        for (int c = 0; c < COLUMNS; c++) {
            for (int r = 0; r < ROWS; r++) {
                acc[c][r] = 0;
            }
        }
        for (int first = 0; first < depth; first += STEP) {
            const int wide = smaller(STEP, depth - first);
            for (int k = 0; k < STEP; k++) {
                const bool in = k < wide;
                const lanes_t<ROWS> row = in ? a.read() : lanes_t<ROWS>();
                const lanes_t<COLUMNS> column = in ? w.read() : lanes_t<COLUMNS>();
                for (int r = 0; r < ROWS; r++) {
                    rows[r][k] = row.v[r];
                }
                for (int c = 0; c < COLUMNS; c++) {
                    columns[c][k] = column.v[c];
                }
            }
            const int length = (wide + 63) / 64 * 64;
            for (int c = 0; c < COLUMNS; c++) {
                for (int r = 0; r < ROWS; r++) {
                    int32_t sum = 0;
                    for (int k = 0; k < length; k++) {
                        sum += static_cast<int32_t>(rows[r][k]) * static_cast<int32_t>(columns[c][k]);
                    }
                    acc[c][r] += sum;
                }
            }
        }
        for (int c = COLUMNS - 1; c >= 0; c--) {
            column_t<ROWS> column;
            for (int r = 0; r < ROWS; r++) {
                column.v[r] = acc[c][r];
            }
            sums.write(column);
        }
    }
}

}  // namespace gt
