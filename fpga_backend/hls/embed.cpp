// Rows of a table: y[r][j] = f32(q[index[r] + offset][j]) * s[index[r] + offset].
#include "beats.h"
#include "numbers.h"

extern "C" void gt_embed(const gt::halves_t *q, const gt::floats_t *s, const gt::words_t *index, gt::floats_t *y, int32_t rows,
                         int32_t width, int32_t offset) {
#pragma HLS INTERFACE m_axi port = q bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = s bundle = gmem0
#pragma HLS INTERFACE m_axi port = index bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = offset
#pragma HLS INTERFACE s_axilite port = return
    using namespace gt;
    const int table_beats = beats(width, HALVES);
    const int row_beats = beats(width, FLOATS);
    Words indices(index);
    for (int row = 0; row < rows; row++) {
        const long entry = static_cast<long>(indices[row]) + offset;
        const float scale = s[entry / FLOATS].v[entry % FLOATS];
        for (int b = 0; b < row_beats; b++) {
#pragma HLS PIPELINE II = 1
            const halves_t from = q[entry * table_beats + b / 2];
            floats_t beat;
            for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                beat.v[lane] = static_cast<float>(from.v[b % 2 * FLOATS + lane]) * scale;
            }
            y[static_cast<long>(row) * row_beats + b] = beat;
        }
    }
}
