// The score head: as the 8-bit product, with 16 bits on both sides and sums of 48 bits.
#include "beats.h"
#include "numbers.h"

// The width of an accumulator in the words of ap_int: 131072 products of 15 bits and sign stay below 2^47.
#if defined(__SYNTHESIS__) || defined(GT_AP_INT)
#include <ap_int.h>
typedef ap_int<48> sum_t;
inline float to_float(const sum_t &sum) { return static_cast<float>(sum.to_int64()); }
#else
typedef int64_t sum_t;
inline float to_float(sum_t sum) { return static_cast<float>(sum); }
#endif

namespace {

using namespace gt;

constexpr int CHUNK = 4096;

}  // namespace

extern "C" void gt_score(const gt::floats_t *x, const gt::halves_t *w, const gt::floats_t *ws, const gt::floats_t *b, gt::floats_t *y,
                         int32_t rows, int32_t x_stride, int32_t x_start, int32_t width, int32_t labels, int32_t biased) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = w bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = ws bundle = gmem0
#pragma HLS INTERFACE m_axi port = b bundle = gmem0
#pragma HLS INTERFACE m_axi port = y bundle = gmem0
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = labels
#pragma HLS INTERFACE s_axilite port = biased
#pragma HLS INTERFACE s_axilite port = return
    const int w_beats = beats(width, HALVES);
    const long y_stride = beats(labels, FLOATS);
    Floats weight_scales(ws), bias(b);
    for (int row = 0; row < rows; row++) {
        const long from = static_cast<long>(row) * x_stride;
        const float peak = peak_of<CHUNK>(x, from, x_start, width);
        const float factor = factor_of<Q16>(peak);
        const float scale = scale_of<Q16>(peak);
        floats_t beat = {};
        for (int label = 0; label < labels; label++) {
            sum_t sum = 0;
            for (int column = 0; column < width; column += CHUNK) {
                Row<CHUNK> in;
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
                const int wide = smaller(CHUNK, width - column);
                in.read(x, from, x_start + column, wide);
                for (int block = 0; block < wide; block += HALVES) {
#pragma HLS PIPELINE
                    const halves_t weights = w[static_cast<long>(label) * w_beats + (column + block) / HALVES];
                    for (int lane = 0; lane < HALVES; lane++) {
#pragma HLS UNROLL
                        if (block + lane < wide) {
                            sum += quantised<Q16>(in[block + lane], factor) * static_cast<int32_t>(weights.v[lane]);
                        }
                    }
                }
            }
            const float scaled = to_float(sum) * scale * weight_scales[label];
            beat.v[label % FLOATS] = biased ? scaled + bias[label] : scaled;
            if (label % FLOATS == FLOATS - 1 || label == labels - 1) {
                y[row * y_stride + label / FLOATS] = beat;
                for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                    beat.v[lane] = 0.0f;
                }
            }
        }
    }
}
