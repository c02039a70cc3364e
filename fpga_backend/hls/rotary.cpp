// Rotation of each head by its row's position: with h half a head,
//   y[j] = x[j] * cos[j] - x[j + h] * sin[j];   y[j + h] = x[j + h] * cos[j] + x[j] * sin[j]
#include "beats.h"
#include "numbers.h"

extern "C" void gt_rotary(const gt::floats_t *x, const gt::floats_t *cos, const gt::floats_t *sin, const gt::words_t *positions,
                          gt::floats_t *y, int32_t rows, int32_t x_stride, int32_t x_start, int32_t heads, int32_t half) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = cos bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = sin bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = positions bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = heads
#pragma HLS INTERFACE s_axilite port = half
#pragma HLS INTERFACE s_axilite port = return
    using namespace gt;
    GT_ONCHIP Row<MAX_ROW> in;
    GT_ONCHIP Row<MAX_ROW / 2> cosines, sines;
    GT_ONCHIP float out[MAX_ROW];
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = cosines.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = sines.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = out cyclic factor = 16
    const int width = 2 * half * heads;
    const long angle_stride = beats(half, FLOATS);
    const long y_stride = beats(width, FLOATS);
    Words places(positions);
    for (int row = 0; row < rows; row++) {
        const long position = places[row];
        cosines.read(cos, position * angle_stride, 0, half);
        sines.read(sin, position * angle_stride, 0, half);
        in.read(x, static_cast<long>(row) * x_stride, x_start, width);
        for (int head = 0; head < heads; head++) {
            const int base = head * 2 * half;
            for (int j = 0; j < half; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 8
                const float a = in[base + j];
                const float b = in[base + half + j];
                out[base + j] = a * cosines[j] - b * sines[j];
                out[base + half + j] = b * cosines[j] + a * sines[j];
            }
        }
        write_row(y, row * y_stride, out, width);
    }
}
