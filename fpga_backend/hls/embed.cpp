// Rows of a table: y[r][j] = f32(q[index[r] + offset][j]) * s[index[r] + offset].
//
// Rows and their scales are asked for one behind the other, BLOCK at a time; a second process computes and writes.
#include "beats.h"
#include "groups.h"
#include "numbers.h"
#include "stream.h"

namespace {

using namespace gt;

void fetch(const halves_t *q, const floats_t *s, const words_t *index, long first, int rows, int width, int offset,
           hls::stream<float> &scales, hls::stream<halves_t> &to) {
    const int wide = beats(width, HALVES);
    Words indices(index);
    for (int row = 0; row < rows; row++) {
        const long entry = static_cast<long>(indices[first + row]) + offset;
        scales.write(s[entry / FLOATS].v[entry % FLOATS]);
        for (int b = 0; b < wide; b++) {
#pragma HLS PIPELINE II = 1
            to.write(q[entry * wide + b]);
        }
    }
}

void scale(hls::stream<float> &scales, hls::stream<halves_t> &from, int rows, int width, floats_t *y) {
    const int wide = beats(width, FLOATS);
    halves_t held = {};
    float by = 0.0f;
    int b = 0;
    for (int i = 0; i < rows * wide; i++) {
#pragma HLS PIPELINE II = 1
        by = b == 0 ? scales.read() : by;
        held = b % 2 == 0 ? from.read() : held;
        floats_t out;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            out.v[lane] = static_cast<float>(held.v[b % 2 * FLOATS + lane]) * by;
        }
        y[i] = out;
        b = b + 1 == wide ? 0 : b + 1;
    }
}

void block(const halves_t *q, const floats_t *s, const words_t *index, long first, int rows, int width, int offset, floats_t *y) {
#pragma HLS DATAFLOW
    hls::stream<float> scales("scales");
    hls::stream<halves_t> table("table");
#pragma HLS STREAM variable = scales depth = 64
#pragma HLS STREAM variable = table depth = 64
    fetch(q, s, index, first, rows, width, offset, scales, table);
    scale(scales, table, rows, width, y);
}

}  // namespace

extern "C" void gt_embed(const gt::halves_t *q, const gt::floats_t *s, const gt::words_t *index, gt::floats_t *y, int32_t rows,
                         int32_t width, int32_t offset) {
#pragma HLS INTERFACE m_axi port = q bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = s bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = index bundle = gmem0
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = offset
#pragma HLS INTERFACE s_axilite port = return
    using namespace gt;
    for (int row = 0; row < rows; row += BLOCK) {
        block(q, s, index, row, smaller(BLOCK, rows - row), width, offset, y + static_cast<long>(row) * beats(width, FLOATS));
    }
}
