// Rows as 8-bit integers with a scale each: q = rne(x * (127 / a)), s = a * f32(1 / 127), a the largest magnitude.
//
// A row is cut into `groups` of equal width (the heads of attention) that are quantised by themselves. Each group fills
// whole beats, with zeros at its end. With two `digits`, q = rne(x * (32512 / a)) and s = a * f32(1 / 32512); a group
// then is its high digits and behind them its low ones, each in whole beats. Where `indexed`, row r is row index[first + r] of the register.
#include "beats.h"
#include "numbers.h"

namespace {

using namespace gt;

constexpr int CHUNK = 4096;

void write_group(const floats_t *x, long first_beat, int start, int width, float factor, int digits, bytes_t *q,
                 long to) {
    for (int column = 0; column < width; column += CHUNK) {
        Row<CHUNK> in;
        int8_t out[2][CHUNK];
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = out cyclic factor = 64 dim = 2
        const int wide = smaller(CHUNK, width - column);
        in.read(x, first_beat, start + column, wide);
        for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            if (digits == 2) {
                const int32_t n = quantised<Q16D>(in[j], factor);
                const int32_t high = high_digit(n);
                out[0][j] = static_cast<int8_t>(high);
                out[1][j] = static_cast<int8_t>(n - DIGIT_BASE * high);
            } else {
                out[0][j] = static_cast<int8_t>(quantised<Q8>(in[j], factor));
            }
        }
        for (int digit = 0; digit < digits; digit++) {
            for (int b = 0; b < beats(wide, BYTES); b++) {
#pragma HLS PIPELINE II = 1
                bytes_t beat;
                for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
                    const int j = b * BYTES + lane;
                    beat.v[lane] = j < wide ? out[digit][j] : static_cast<int8_t>(0);
                }
                q[to + digit * beats(width, BYTES) + column / BYTES + b] = beat;
            }
        }
    }
}

}  // namespace

extern "C" void gt_quantise(const gt::floats_t *x, const gt::words_t *index, gt::bytes_t *q, gt::floats_t *s, int32_t rows,
                            int32_t x_stride, int32_t x_start, int32_t width, int32_t groups, int32_t indexed,
                            int32_t first, int32_t digits) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = index bundle = gmem0
#pragma HLS INTERFACE m_axi port = q bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE m_axi port = s bundle = gmem0
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = groups
#pragma HLS INTERFACE s_axilite port = indexed
#pragma HLS INTERFACE s_axilite port = first
#pragma HLS INTERFACE s_axilite port = digits
#pragma HLS INTERFACE s_axilite port = return
    using namespace gt;
    const int group_width = width / groups;
    const int group_beats = beats(group_width, BYTES);
    Words indices(index);
    FloatWriter scales(s);
    for (int row = 0; row < rows; row++) {
        const long from = static_cast<long>(indexed ? indices[first + row] : row) * x_stride;
        for (int group = 0; group < groups; group++) {
            const long number = static_cast<long>(row) * groups + group;
            const int start = x_start + group * group_width;
            const float peak = peak_of<CHUNK>(x, from, start, group_width);
            scales.put(number, digits == 2 ? scale_of<Q16D>(peak) : scale_of<Q8>(peak));
            const float factor = digits == 2 ? factor_of<Q16D>(peak) : factor_of<Q8>(peak);
            write_group(x, from, start, group_width, factor, digits, q, number * digits * group_beats);
        }
    }
    scales.flush();
}
