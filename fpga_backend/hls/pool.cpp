// A row for each sequence: its first row, its last, or the mean of all, in integers of 20 bits with one scale.
//
// A sequence is a line of `segments`: start and rows of its own segment, and of the prompt before it (0 rows: none).
#include "beats.h"
#include "numbers.h"

namespace {

using namespace gt;

enum How { FIRST = 0, LAST = 1, MEAN = 2 };

struct Span {
    int start, rows, parent_start, parent_rows;

    int row(int position) const { return position < parent_rows ? parent_start + position : start + position - parent_rows; }
    int length() const { return rows + parent_rows; }
};

void mean(const floats_t *x, const Span &span, int x_stride, int x_start, int width, float out[MAX_ROW]) {
    GT_ONCHIP Row<MAX_ROW> in;
    GT_ONCHIP int64_t sum[MAX_ROW];
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = sum cyclic factor = 16
    Peak peak;
    for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
        sum[j] = 0;
    }
    for (int t = 0; t < span.length(); t++) {
        in.read(x, static_cast<long>(span.row(t)) * x_stride, x_start, width);
        for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            peak.see(in[j]);
        }
    }
    const float factor = factor_of<Q20>(peak.value());
    const float scale = scale_of<Q20>(peak.value());
    for (int t = 0; t < span.length(); t++) {
        in.read(x, static_cast<long>(span.row(t)) * x_stride, x_start, width);
        for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            sum[j] += quantised<Q20>(in[j], factor);
        }
    }
    for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
        out[j] = static_cast<float>(sum[j]) * scale / static_cast<float>(span.length());
    }
}

}  // namespace

extern "C" void gt_pool(const gt::floats_t *x, const gt::words_t *segments, gt::floats_t *y, int32_t sequences, int32_t x_stride,
                        int32_t x_start, int32_t width, int32_t how) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = segments bundle = gmem0
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = sequences
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = how
#pragma HLS INTERFACE s_axilite port = return
    GT_ONCHIP Row<MAX_ROW> one;
    GT_ONCHIP float out[MAX_ROW];
#pragma HLS ARRAY_PARTITION variable = one.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = out cyclic factor = 16
    const long y_stride = beats(width, FLOATS);
    Words lines(segments);
    for (int i = 0; i < sequences; i++) {
        const Span span = {lines[4 * i], lines[4 * i + 1], lines[4 * i + 2], lines[4 * i + 3]};
        if (how == MEAN) {
            mean(x, span, x_stride, x_start, width, out);
        } else {
            const int row = span.row(how == FIRST ? 0 : span.length() - 1);
            one.read(x, static_cast<long>(row) * x_stride, x_start, width);
            for (int j = 0; j < width; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
                out[j] = one[j];
            }
        }
        write_row(y, i * y_stride, out, width);
    }
}
