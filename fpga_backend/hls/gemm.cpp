// 8-bit matrix product with the scales and the bias in its epilogue.
//
//   y[m][n] = (f32(sum_k q[m][k] * w[n][k]) * qs[m]) * ws[n]  (+ b[n])
//
// With two `digits` a row of q is two, the high digits and then the low ones, and the sum is 255 times that of the high
// ones plus that of the low ones, in 64 bits: the same array, twice the rows.
//
// Two arrays of ROWS x COLUMNS take the same rows and each its own columns: a pass makes ROWS x OUTPUTS sums. Weights lie
// tile-major (csim/layout.py): of pass p and array i, beat k is the weights of COLUMNS outputs for input k, and even and odd
// beats lie in two pseudo-channels with a port each, which are read from their first byte to their last for each block of
// rows. A block of rows is read once, in one piece, and turned on the chip. Stages are processes of one dataflow region;
// while a block is multiplied the next one is read. roofline/cycles.py counts the same schedule.
#include "beats.h"
#include "numbers.h"
#include "stream.h"
#include "tile.h"

namespace gt {

constexpr int ROWS = 64;
constexpr int COLUMNS = 64;
constexpr int ARRAYS = 2;
constexpr int OUTPUTS = ARRAYS * COLUMNS;
constexpr int GROUPS = COLUMNS / FLOATS;
constexpr int DEPTH = 16384;  // inputs of a block of rows that the chip holds; longer ones are read again for each pass

typedef lanes_t<ROWS> rows_t;
typedef lanes_t<COLUMNS> weights_t;
typedef column_t<ROWS> sums_t;

}  // namespace gt

// gt_gemm_array.v in synthesis.
void gt_gemm_array(hls::stream<gt::rows_t> &a, hls::stream<gt::weights_t> &w, hls::stream<gt::sums_t> &sums, int32_t depth,
                   int32_t tiles)
#ifdef __SYNTHESIS__
    ;
#else
{
    gt::tiles_of<gt::ROWS, gt::COLUMNS>(a, w, sums, depth, tiles);
}
#endif

namespace {

using namespace gt;

// Reads a block of rows. What fits on the chip goes into `held` once: input k of row r into bank (r + k) % ROWS. What does
// not is turned 64 inputs at a time, for each pass anew.
void load(const bytes_t *q, int rows, int inner_beats, int passes, int8_t held[DEPTH][ROWS], hls::stream<rows_t> &turned) {
    if (inner_beats * BYTES <= DEPTH) {
        for (int row = 0; row < rows; row++) {
            for (int beat = 0; beat < inner_beats; beat++) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = held inter false
                const bytes_t lanes = q[static_cast<long>(row) * inner_beats + beat];
                for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
                    held[beat * BYTES + lane][(row + lane) & (ROWS - 1)] = lanes.v[lane];
                }
            }
        }
        return;
    }
    for (int pass = 0; pass < passes; pass++) {
        for (int beat = 0; beat < inner_beats; beat++) {
            rows_t turn[BYTES] = {};
#pragma HLS ARRAY_PARTITION variable = turn complete dim = 1
            for (int row = 0; row < rows; row++) {
#pragma HLS PIPELINE II = 1
                const bytes_t lanes = q[static_cast<long>(row) * inner_beats + beat];
                for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
                    turn[lane].v[row] = lanes.v[lane];
                }
            }
            for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS PIPELINE II = 1
                turned.write(turn[lane]);
            }
        }
    }
}

// Gives each array the block's rows, an input a clock, once a pass.
void feed(const int8_t held[DEPTH][ROWS], hls::stream<rows_t> &turned, int rows, int inner_beats, int passes,
          hls::stream<rows_t> &a0, hls::stream<rows_t> &a1) {
    const int depth = inner_beats * BYTES;
    for (int pass = 0; pass < passes; pass++) {
        for (int k = 0; k < depth; k++) {
#pragma HLS PIPELINE II = 1
            rows_t lanes;
            if (depth <= DEPTH) {
                rotate<int8_t, ROWS>(held[k], -k, lanes.v);
                for (int row = 0; row < ROWS; row++) {
#pragma HLS UNROLL
                    lanes.v[row] = row < rows ? lanes.v[row] : static_cast<int8_t>(0);
                }
            } else {
                lanes = turned.read();
            }
            a0.write(lanes);
            a1.write(lanes);
        }
    }
}

void fetch(const bytes_t *w, int beats, hls::stream<bytes_t> &to) {
    for (int beat = 0; beat < beats; beat++) {
#pragma HLS PIPELINE II = 1
        to.write(w[beat]);
    }
}

void join(hls::stream<bytes_t> &even, hls::stream<bytes_t> &odd, int beats, hls::stream<weights_t> &to) {
    for (int beat = 0; beat < 2 * beats; beat++) {
#pragma HLS PIPELINE II = 1
        const bytes_t from = beat % 2 ? odd.read() : even.read();
        weights_t lanes;
        for (int lane = 0; lane < COLUMNS; lane++) {
#pragma HLS UNROLL
            lanes.v[lane] = from.v[lane];
        }
        to.write(lanes);
    }
}

// Scales of the block's rows, then scales and bias of each pass, ahead of the sums that want them.
void scales(const floats_t *qs, const floats_t *ws, const floats_t *b, int row, int rows, int outputs, int biased,
            hls::stream<floats_t> &of_rows, hls::stream<floats_t> &of_outputs) {
    for (int beat = row / FLOATS; beat < beats(row + rows, FLOATS); beat++) {
#pragma HLS PIPELINE II = 1
        of_rows.write(qs[beat]);
    }
    for (int group = 0; group < beats(outputs, OUTPUTS) * ARRAYS * GROUPS; group++) {
#pragma HLS PIPELINE II = 1
        const bool in = group * FLOATS < outputs;
        of_outputs.write(in ? ws[group] : floats_t());
        if (biased) {
            of_outputs.write(in ? b[group] : floats_t());
        }
    }
}

// Takes a pass's columns, each turned by its number, so that a row is read back a clock; then scales and writes it.
void finish(hls::stream<sums_t> &sums0, hls::stream<sums_t> &sums1, hls::stream<floats_t> &of_rows,
            hls::stream<floats_t> &of_outputs, floats_t *y, int row, int rows, int digits, int outputs, int biased) {
    GT_ONCHIP int32_t held[ARRAYS][COLUMNS][ROWS];
    float row_scales[ROWS + FLOATS];
#pragma HLS ARRAY_PARTITION variable = held complete dim = 1
#pragma HLS ARRAY_PARTITION variable = held complete dim = 3
    floats_t scale[ARRAYS * GROUPS], bias[ARRAYS * GROUPS];
    const int stride = beats(outputs, FLOATS);
    const int offset = row % FLOATS;
    for (int beat = 0; beat < beats(offset + rows, FLOATS); beat++) {
#pragma HLS PIPELINE II = 1
        const floats_t lanes = of_rows.read();
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            row_scales[beat * FLOATS + lane] = lanes.v[lane];
        }
    }
    for (int output = 0; output < outputs; output += OUTPUTS) {
        for (int group = 0; group < ARRAYS * GROUPS; group++) {
#pragma HLS PIPELINE II = 1
            scale[group] = of_outputs.read();
            if (biased) {
                bias[group] = of_outputs.read();
            }
        }
        for (int column = COLUMNS - 1; column >= 0; column--) {
#pragma HLS PIPELINE II = 1
            rotate<int32_t, ROWS>(sums0.read().v, column, held[0][column]);
            rotate<int32_t, ROWS>(sums1.read().v, column, held[1][column]);
        }
        const int groups = smaller(ARRAYS * GROUPS, stride - output / FLOATS);
        int32_t high[COLUMNS], low[COLUMNS];
#pragma HLS ARRAY_PARTITION variable = high complete
#pragma HLS ARRAY_PARTITION variable = low complete
        for (int m = 0; m < rows; m++) {
            for (int group = 0; group < groups; group++) {
#pragma HLS PIPELINE II = 1
                if (group % GROUPS == 0) {
                    across<int32_t, COLUMNS, ROWS>(held[group / GROUPS], m * digits, high);
                    across<int32_t, COLUMNS, ROWS>(held[group / GROUPS], m * digits + 1, low);
                }
                floats_t beat;
                for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                    const int column = group % GROUPS * FLOATS + lane;
                    const int64_t sum = digits == 2 ? int64_t(DIGIT_BASE) * high[column] + low[column] : high[column];
                    const float scaled = static_cast<float>(sum) * row_scales[offset + m] * scale[group].v[lane];
                    const float value = biased ? scaled + bias[group].v[lane] : scaled;
                    beat.v[lane] = output + group * FLOATS + lane < outputs ? value : 0.0f;
                }
                y[static_cast<long>(row + m) * stride + output / FLOATS + group] = beat;
            }
        }
    }
}

void block(const bytes_t *q, const floats_t *qs, const bytes_t *w0, const bytes_t *w1, const bytes_t *w2, const bytes_t *w3,
           const floats_t *ws, const floats_t *b, floats_t *y, int row, int rows, int digits, int outputs, int inner_beats,
           int biased) {
#pragma HLS DATAFLOW
    GT_ONCHIP int8_t held[DEPTH][ROWS];
#pragma HLS ARRAY_PARTITION variable = held complete dim = 2
    hls::stream<rows_t> turned("turned"), a0("a0"), a1("a1");
    hls::stream<bytes_t> even0("even0"), odd0("odd0"), even1("even1"), odd1("odd1");
    hls::stream<weights_t> weights0("weights0"), weights1("weights1");
    hls::stream<sums_t> sums0("sums0"), sums1("sums1");
    hls::stream<floats_t> of_rows("of_rows"), of_outputs("of_outputs");
#pragma HLS STREAM variable = turned depth = 64
#pragma HLS STREAM variable = a0 depth = 16
#pragma HLS STREAM variable = a1 depth = 16
#pragma HLS STREAM variable = even0 depth = 512
#pragma HLS STREAM variable = odd0 depth = 512
#pragma HLS STREAM variable = even1 depth = 512
#pragma HLS STREAM variable = odd1 depth = 512
#pragma HLS STREAM variable = weights0 depth = 16
#pragma HLS STREAM variable = weights1 depth = 16
#pragma HLS STREAM variable = sums0 depth = 2
#pragma HLS STREAM variable = sums1 depth = 2
#pragma HLS STREAM variable = of_rows depth = 16
#pragma HLS STREAM variable = of_outputs depth = 64
    const int passes = beats(outputs, OUTPUTS);
    const int depth = inner_beats * BYTES;
    const int port_beats = passes * depth / 2;
    load(q + static_cast<long>(row) * digits * inner_beats, rows * digits, inner_beats, passes, held, turned);
    feed(held, turned, rows * digits, inner_beats, passes, a0, a1);
    fetch(w0, port_beats, even0);
    fetch(w1, port_beats, odd0);
    fetch(w2, port_beats, even1);
    fetch(w3, port_beats, odd1);
    join(even0, odd0, port_beats, weights0);
    join(even1, odd1, port_beats, weights1);
    gt_gemm_array(a0, weights0, sums0, depth, passes);
    gt_gemm_array(a1, weights1, sums1, depth, passes);
    scales(qs, ws, b, row, rows, outputs, biased, of_rows, of_outputs);
    finish(sums0, sums1, of_rows, of_outputs, y, row, rows, digits, outputs, biased);
}

}  // namespace

extern "C" void gt_gemm(const gt::bytes_t *q, const gt::floats_t *qs, const gt::bytes_t *w0, const gt::bytes_t *w1,
                        const gt::bytes_t *w2, const gt::bytes_t *w3, const gt::floats_t *ws, const gt::floats_t *b,
                        gt::floats_t *y, int32_t rows, int32_t inner_beats, int32_t outputs, int32_t biased,
                        int32_t digits) {
#pragma HLS INTERFACE m_axi port = q bundle = gmem0 max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = qs bundle = gmem5 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = w0 bundle = gmem1 max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = w1 bundle = gmem2 max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = w2 bundle = gmem3 max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = w3 bundle = gmem4 max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = ws bundle = gmem5 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = b bundle = gmem5 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = inner_beats
#pragma HLS INTERFACE s_axilite port = outputs
#pragma HLS INTERFACE s_axilite port = biased
#pragma HLS INTERFACE s_axilite port = digits
#pragma HLS INTERFACE s_axilite port = return
    const int step = digits == 2 ? gt::ROWS / 2 : gt::ROWS;
    for (int row = 0; row < rows; row += step) {
        block(q, qs, w0, w1, w2, w3, ws, b, y, row, gt::smaller(step, rows - row), digits, outputs, inner_beats, biased);
    }
}
