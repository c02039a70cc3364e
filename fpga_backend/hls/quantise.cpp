// Rows as 8-bit integers with a scale each: q = rne(x * (127 / a)), s = a * f32(1 / 127), a the largest magnitude.
//
// A row is cut into `groups` of equal width (the heads of attention) that are quantised by themselves. Each group fills
// whole beats, with zeros at its end. With two `digits`, q = rne(x * (32512 / a)) and s = a * f32(1 / 32512); a group
// then is its high digits and behind them its low ones, each in whole beats. Where `indexed`, row r is row index[first + r] of the register.
//
// Stages are processes that pass beats on, over BLOCK rows at a time, in loops that do not end with a group: memory is asked for a
// beat a clock, and no row or head waits for the one before. A group waits in `kept` until its largest magnitude is known.
#include "beats.h"
#include "groups.h"
#include "numbers.h"
#include "stream.h"

namespace {

using namespace gt;

struct Shape {
    Groups of;
    int digits, start;
    long stride, first;
};

void fetch(const floats_t *x, const words_t *index, int indexed, const Shape &shape, hls::stream<floats_t> &to) {
    Words indices(index);
    for (int row = 0; row < shape.of.rows; row++) {
        const long from = (indexed ? indices[shape.first + row] : shape.first + row) * shape.stride;
        for (int group = 0; group < shape.of.groups; group++) {
            fetch_group(x, from, shape.start + group * shape.of.width, shape.of.width, to);
        }
    }
}

void scale(hls::stream<float> &peaks, const Shape &shape, floats_t *s, hls::stream<float> &factors) {
    FloatWriter scales(s);
    for (int i = 0; i < shape.of.rows * shape.of.groups; i++) {
#pragma HLS PIPELINE II = 1
        const float peak = peaks.read();
        scales.put(shape.first * shape.of.groups + i, shape.digits == 2 ? scale_of<Q16D>(peak) : scale_of<Q8>(peak));
        factors.write(shape.digits == 2 ? factor_of<Q16D>(peak) : factor_of<Q8>(peak));
    }
    scales.flush();
}

// Integers of a group, in beats of 64: high digits, or all there are, to one stream, low ones to the other.
void cut(hls::stream<floats_t> &kept, hls::stream<float> &factors, const Shape &shape, hls::stream<bytes_t> &high,
         hls::stream<bytes_t> &low) {
    bytes_t first = {}, second = {};
    float factor = 0.0f;
    int b = 0;
    for (int i = 0; i < shape.of.total(); i++) {
#pragma HLS PIPELINE II = 1
        if (b == 0) {
            factor = factors.read();
        }
        const floats_t beat = kept.read();
        const int place = b % (BYTES / FLOATS) * FLOATS;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            if (shape.digits == 2) {
                const int32_t n = quantised<Q16D>(beat.v[lane], factor);
                const int32_t digit = high_digit(n);
                first.v[place + lane] = static_cast<int8_t>(digit);
                second.v[place + lane] = static_cast<int8_t>(n - DIGIT_BASE * digit);
            } else {
                first.v[place + lane] = static_cast<int8_t>(quantised<Q8>(beat.v[lane], factor));
            }
        }
        const bool last = ++b == shape.of.wide();
        if (last || b % (BYTES / FLOATS) == 0) {
            high.write(first);
            if (shape.digits == 2) {
                low.write(second);
            }
            first = bytes_t();
            second = bytes_t();
        }
        b = last ? 0 : b;
    }
}

void store(hls::stream<bytes_t> &high, hls::stream<bytes_t> &low, const Shape &shape, bytes_t *q) {
    const int half = beats(shape.of.width, BYTES);
    int b = 0;
    const int total = shape.of.rows * shape.of.groups * shape.digits * half;
    for (int i = 0; i < total; i++) {
#pragma HLS PIPELINE II = 1
        q[shape.first * shape.of.groups * shape.digits * half + i] = b < half ? high.read() : low.read();
        b = b + 1 == shape.digits * half ? 0 : b + 1;
    }
}

void block(const floats_t *x, const words_t *index, bytes_t *q, floats_t *s, int indexed, const Shape &rows,
           const Shape &results) {
#pragma HLS DATAFLOW
    hls::stream<floats_t> beats_in("beats_in"), kept("kept");
    hls::stream<float> peaks("peaks"), factors("factors");
    hls::stream<bytes_t> high("high"), low("low");
#pragma HLS STREAM variable = beats_in depth = 64
#pragma HLS STREAM variable = kept depth = 8208
#pragma HLS BIND_STORAGE variable = kept type = fifo impl = uram
#pragma HLS STREAM variable = peaks depth = 64
#pragma HLS STREAM variable = factors depth = 64
#pragma HLS STREAM variable = high depth = 2064
#pragma HLS STREAM variable = low depth = 2064
    fetch(x, index, indexed, rows, beats_in);
    measure(beats_in, results.of, peaks, kept);
    scale(peaks, results, s, factors);
    cut(kept, factors, results, high, low);
    store(high, low, results, q);
}

}  // namespace

extern "C" void gt_quantise(const gt::floats_t *x, const gt::words_t *index, gt::bytes_t *q, gt::floats_t *s, int32_t rows,
                            int32_t x_stride, int32_t x_start, int32_t width, int32_t groups, int32_t indexed,
                            int32_t first, int32_t digits) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 num_read_outstanding = 64
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
    const int wide = width / groups;
    for (int row = 0; row < rows; row += BLOCK) {
        const int count = smaller(BLOCK, rows - row);
        const Groups shape = {count, groups, wide};
        const Shape from = {shape, digits, x_start, x_stride, (indexed ? first : 0) + row};
        const Shape to = {shape, digits, x_start, x_stride, row};
        block(x, index, q, s, indexed, from, to);
    }
}
