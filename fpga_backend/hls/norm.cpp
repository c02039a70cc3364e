// Layer norm and RMS norm of rows of at most 8192 columns, or of groups of so many columns side by side in a row, with the row
// (the group) in integers of 20 bits:
//   c = n - floor((2 sum n + w) / 2w)  or  c = n;   v = f32(sum c^2) / f32(w);   r = 1 / sqrt(v + eps / e^2)
//   y = (f32(c) * r) * g  (+ b)
#include "beats.h"
#include "numbers.h"

namespace {

using namespace gt;

// floor(a / b) for b > 0.
int64_t floor_divided(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    return quotient * b > a ? quotient - 1 : quotient;
}

}  // namespace

extern "C" void gt_norm(const gt::floats_t *x, const gt::floats_t *g, const gt::floats_t *b, gt::floats_t *y, int32_t rows,
                        int32_t x_stride, int32_t x_start, int32_t width, int32_t layer, int32_t biased, int32_t eps,
                        int32_t groups) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = g bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = b bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = layer
#pragma HLS INTERFACE s_axilite port = biased
#pragma HLS INTERFACE s_axilite port = eps
#pragma HLS INTERFACE s_axilite port = groups
#pragma HLS INTERFACE s_axilite port = return
    GT_ONCHIP Row<MAX_WIDTH> gain, bias, in;
    GT_ONCHIP int32_t n[MAX_WIDTH];
    GT_ONCHIP float out[MAX_WIDTH];
#pragma HLS ARRAY_PARTITION variable = gain.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = bias.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = n cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = out cyclic factor = 16
    const long y_stride = beats(groups * width, FLOATS);
    gain.read(g, 0, 0, width);
    if (biased) {
        bias.read(b, 0, 0, width);
    }
    for (int row = 0; row < rows; row++) {
        for (int base = 0; base < groups * width; base += width) {
            in.read(x, static_cast<long>(row) * x_stride, x_start + base, width);
            Peak peak;
            for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
                peak.see(in[j]);
            }
            const float factor = factor_of<Q20>(peak.value());
            const float e = scale_of<Q20>(peak.value());
            int64_t sum = 0;
            for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
                n[j] = quantised<Q20>(in[j], factor);
                sum += n[j];
            }
            const int64_t twice = 2 * static_cast<int64_t>(width);
            const int32_t mean = layer ? static_cast<int32_t>(floor_divided(2 * sum + width, twice)) : 0;
            int64_t squares = 0;
            for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
                n[j] -= mean;
                squares += static_cast<int64_t>(n[j]) * n[j];
            }
            const float variance = static_cast<float>(squares) / static_cast<float>(width);
            const float r = 1.0f / sqrtf(variance + from_bits(eps) / (e * e));
            for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
                const float scaled = static_cast<float>(n[j]) * r * gain[j];
                out[base + j] = biased ? scaled + bias[j] : scaled;
            }
        }
        write_row(y, row * y_stride, out, groups * width);
    }
}
