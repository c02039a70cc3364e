// Sum of two registers: y = x + z.
#include "beats.h"

namespace {
constexpr int CHUNK = 1024;
}

extern "C" void gt_add(const gt::floats_t *x, const gt::floats_t *z, gt::floats_t *y, int32_t rows, int32_t x_stride,
                       int32_t x_start, int32_t z_stride, int32_t z_start, int32_t width) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = z bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = z_stride
#pragma HLS INTERFACE s_axilite port = z_start
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = return
    using namespace gt;
    const long y_stride = beats(width, FLOATS);
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < width; column += CHUNK) {
            Row<CHUNK> left, right;
            float sum[CHUNK];
#pragma HLS ARRAY_PARTITION variable = left.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = right.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = sum cyclic factor = 16
            const int wide = smaller(CHUNK, width - column);
            left.read(x, static_cast<long>(row) * x_stride, x_start + column, wide);
            right.read(z, static_cast<long>(row) * z_stride, z_start + column, wide);
            for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
                sum[j] = left[j] + right[j];
            }
            write_row(y, row * y_stride + column / FLOATS, sum, wide);
        }
    }
}
