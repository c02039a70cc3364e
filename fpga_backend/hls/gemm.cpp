// 8-bit matrix product with the scales and the bias in its epilogue.
//
//   y[m][n] = (f32(sum_k q[m][k] * w[n][k]) * qs[m]) * ws[n]  (+ b[n])
//
// With two `digits` a row of q is two, the high digits and then the low ones, and the sum is 255 times that of the high
// ones plus that of the low ones, in 64 bits: the same array, twice the rows.
//
// An output tile of ROWS x OUTPUTS passes three stages that run side by side: fetch moves beats of both operands from
// memory, multiply gathers them into one of two pairs of tiles while the other pair is multiplied, finish scales and writes.
// A step multiplies UNITS outputs of one row over DEPTH inputs: 2048 products a clock.
#include "beats.h"
#include "numbers.h"
#include "stream.h"

namespace {

using namespace gt;

constexpr int ROWS = 32;
constexpr int OUTPUTS = 32;
constexpr int STEP_BEATS = 4;
constexpr int DEPTH = STEP_BEATS * BYTES;
constexpr int UNITS = 8;

struct sums_t {
    int64_t v[FLOATS];
};

// Beats of `count` rows of an operand, a step of the inner dimension at a time.
void fetch(const bytes_t *from, int first, int count, int inner_beats, hls::stream<bytes_t> &to) {
    for (int step = 0; step < inner_beats; step += STEP_BEATS) {
        const int wide = smaller(STEP_BEATS, inner_beats - step);
        for (int row = 0; row < count; row++) {
            for (int beat = 0; beat < wide; beat++) {
#pragma HLS PIPELINE II = 1
                to.write(from[static_cast<long>(first + row) * inner_beats + step + beat]);
            }
        }
    }
}

template <int N>
void gather(hls::stream<bytes_t> &from, int count, int wide, lane_t tile[N][DEPTH]) {
    for (int row = 0; row < count; row++) {
        for (int beat = 0; beat < STEP_BEATS; beat++) {
#pragma HLS PIPELINE II = 1
            bytes_t lanes = {};
            if (beat < wide) {
                lanes = from.read();
            }
            for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
                tile[row][beat * BYTES + lane] = lanes.v[lane];
            }
        }
    }
}

void mac(const lane_t a[ROWS][DEPTH], const lane_t w[OUTPUTS][DEPTH], int rows, int32_t acc[ROWS][OUTPUTS]) {
    for (int m = 0; m < rows; m++) {
        for (int group = 0; group < OUTPUTS; group += UNITS) {
#pragma HLS PIPELINE II = 1
            for (int unit = 0; unit < UNITS; unit++) {
#pragma HLS UNROLL
                int32_t sum = 0;
                for (int k = 0; k < DEPTH; k++) {
#pragma HLS UNROLL
                    sum += static_cast<int32_t>(a[m][k]) * static_cast<int32_t>(w[group + unit][k]);
                }
                acc[m][group + unit] += sum;
            }
        }
    }
}

void multiply(hls::stream<bytes_t> &a_beats, hls::stream<bytes_t> &w_beats, int rows, int digits, int outputs,
              int inner_beats, hls::stream<sums_t> &sums) {
    GT_ONCHIP lane_t a_ping[ROWS][DEPTH], a_pong[ROWS][DEPTH], w_ping[OUTPUTS][DEPTH], w_pong[OUTPUTS][DEPTH];
#pragma HLS ARRAY_RESHAPE variable = a_ping complete dim = 2
#pragma HLS ARRAY_RESHAPE variable = a_pong complete dim = 2
#pragma HLS ARRAY_RESHAPE variable = w_ping complete dim = 2
#pragma HLS ARRAY_RESHAPE variable = w_pong complete dim = 2
#pragma HLS ARRAY_PARTITION variable = w_ping cyclic factor = 8 dim = 1
#pragma HLS ARRAY_PARTITION variable = w_pong cyclic factor = 8 dim = 1
    int32_t acc[ROWS][OUTPUTS] = {};
#pragma HLS ARRAY_PARTITION variable = acc cyclic factor = 16 dim = 2
    const int steps = beats(inner_beats, STEP_BEATS);
    gather<ROWS>(a_beats, rows, smaller(STEP_BEATS, inner_beats), a_ping);
    gather<OUTPUTS>(w_beats, outputs, smaller(STEP_BEATS, inner_beats), w_ping);
    for (int step = 0; step < steps; step++) {
        const bool more = step + 1 < steps;
        const int wide = smaller(STEP_BEATS, inner_beats - (step + 1) * STEP_BEATS);
        if (step % 2 == 0) {  // the two calls touch different tiles, so they are scheduled side by side
            if (more) {
                gather<ROWS>(a_beats, rows, wide, a_pong);
                gather<OUTPUTS>(w_beats, outputs, wide, w_pong);
            }
            mac(a_ping, w_ping, rows, acc);
        } else {
            if (more) {
                gather<ROWS>(a_beats, rows, wide, a_ping);
                gather<OUTPUTS>(w_beats, outputs, wide, w_ping);
            }
            mac(a_pong, w_pong, rows, acc);
        }
    }
    for (int m = 0; m < rows; m += digits) {
        for (int group = 0; group < OUTPUTS; group += FLOATS) {
#pragma HLS PIPELINE II = 1
            sums_t sum;
            for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                const int64_t first = acc[m][group + lane];
                sum.v[lane] = digits == 2 ? DIGIT_BASE * first + acc[m + 1][group + lane] : first;
            }
            sums.write(sum);
        }
    }
}

void finish(hls::stream<sums_t> &sums, const float *qs, const floats_t *ws, const floats_t *b, floats_t *y, int row,
            int rows, int output, int outputs, int stride, int biased) {
    floats_t scales[OUTPUTS / FLOATS], bias[OUTPUTS / FLOATS];
#pragma HLS ARRAY_PARTITION variable = scales complete
#pragma HLS ARRAY_PARTITION variable = bias complete
    const int wide = beats(outputs, FLOATS);
    for (int group = 0; group < wide; group++) {
#pragma HLS PIPELINE II = 1
        scales[group] = ws[output / FLOATS + group];
        if (biased) {
            bias[group] = b[output / FLOATS + group];
        }
    }
    for (int m = 0; m < rows; m++) {
        const float row_scale = qs[row + m];
        for (int group = 0; group < OUTPUTS / FLOATS; group++) {
#pragma HLS PIPELINE II = 1
            const sums_t sum = sums.read();
            floats_t beat;
            for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                const float scaled = static_cast<float>(sum.v[lane]) * row_scale * scales[group].v[lane];
                const float value = biased ? scaled + bias[group].v[lane] : scaled;
                beat.v[lane] = group * FLOATS + lane < outputs ? value : 0.0f;
            }
            if (group < wide) {
                y[static_cast<long>(row + m) * stride + output / FLOATS + group] = beat;
            }
        }
    }
}

void tile(const bytes_t *q, const float *qs, const bytes_t *w, const floats_t *ws, const floats_t *b, floats_t *y, int row,
          int rows, int digits, int output, int outputs, int inner_beats, int stride, int biased) {
#pragma HLS DATAFLOW
    hls::stream<bytes_t> a_beats("a_beats"), w_beats("w_beats");
    hls::stream<sums_t> sums("sums");
#pragma HLS STREAM variable = a_beats depth = 256
#pragma HLS STREAM variable = w_beats depth = 256
#pragma HLS STREAM variable = sums depth = 64
    fetch(q, row * digits, rows * digits, inner_beats, a_beats);
    fetch(w, output, outputs, inner_beats, w_beats);
    multiply(a_beats, w_beats, rows * digits, digits, outputs, inner_beats, sums);
    finish(sums, qs, ws, b, y, row, rows, output, outputs, stride, biased);
}

}  // namespace

extern "C" void gt_gemm(const gt::bytes_t *q, const float *qs, const gt::bytes_t *w, const gt::floats_t *ws,
                        const gt::floats_t *b, gt::floats_t *y, int32_t rows, int32_t inner_beats, int32_t outputs,
                        int32_t biased, int32_t digits) {
#pragma HLS INTERFACE m_axi port = q bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = qs bundle = gmem1 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = w bundle = gmem2 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = ws bundle = gmem3 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = b bundle = gmem3 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem4 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = inner_beats
#pragma HLS INTERFACE s_axilite port = outputs
#pragma HLS INTERFACE s_axilite port = biased
#pragma HLS INTERFACE s_axilite port = digits
#pragma HLS INTERFACE s_axilite port = return
    const int stride = gt::beats(outputs, gt::FLOATS);
    const int step = digits == 2 ? ROWS / 2 : ROWS;
    for (int output = 0; output < outputs; output += OUTPUTS) {
        for (int row = 0; row < rows; row += step) {
            tile(q, qs, w, ws, b, y, row, gt::smaller(step, rows - row), digits, output,
                 gt::smaller(OUTPUTS, outputs - output), inner_beats, stride, biased);
        }
    }
}
