// Layer norm and RMS norm of rows of at most 8192 columns, or of groups of so many columns side by side in a row, with the row
// (the group) in integers of 20 bits:
//   c = n - floor((2 sum n + w) / 2w)  or  c = n;   v = f32(sum c^2) / f32(w);   r = 1 / sqrt(v + eps / e^2)
//   y = (f32(c) * r) * g  (+ b)
//
// Stages are processes that pass beats on, BLOCK rows at a time, in loops that do not end with a group. A group waits three
// times: until its largest magnitude is known, its sum, and its sum of squares.
#include "beats.h"
#include "groups.h"
#include "numbers.h"
#include "stream.h"

namespace {

using namespace gt;

constexpr int MOST = MAX_WIDTH / FLOATS;

struct Total {
    int64_t sum;
    float step;  // of the integers
};

// floor(a / b) for b > 0.
int64_t floor_divided(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    return quotient * b > a ? quotient - 1 : quotient;
}

void fetch(const floats_t *x, long stride, int start, const Groups &shape, hls::stream<floats_t> &to) {
    for (int row = 0; row < shape.rows; row++) {
        for (int group = 0; group < shape.groups; group++) {
            fetch_group(x, row * stride, start + group * shape.width, shape.width, to);
        }
    }
}

void count(hls::stream<floats_t> &kept, hls::stream<float> &peaks, const Groups &shape, hls::stream<words_t> &numbers,
           hls::stream<Total> &totals) {
    float peak = 0.0f, factor = 0.0f;
    int64_t sum = 0;
    int b = 0;
    for (int i = 0; i < shape.total(); i++) {
#pragma HLS PIPELINE II = 1
        if (b == 0) {
            peak = peaks.read();
            factor = factor_of<Q20>(peak);
        }
        const floats_t beat = kept.read();
        words_t n;
        int32_t part = 0;  // 16 x 2^19
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            n.v[lane] = quantised<Q20>(beat.v[lane], factor);
            part += n.v[lane];
        }
        sum += part;
        numbers.write(n);
        if (++b == shape.wide()) {
            totals.write({sum, scale_of<Q20>(peak)});
            sum = 0;
            b = 0;
        }
    }
}

void centre(hls::stream<words_t> &numbers, hls::stream<Total> &totals, const Groups &shape, int layer, float eps,
            hls::stream<words_t> &centred, hls::stream<float> &roots) {
    Total total = {};
    int32_t mean = 0;
    int64_t squares = 0;
    int b = 0;
    for (int i = 0; i < shape.total(); i++) {
#pragma HLS PIPELINE II = 1
        if (b == 0) {
            total = totals.read();
            mean = layer ? static_cast<int32_t>(floor_divided(2 * total.sum + shape.width, 2 * static_cast<int64_t>(shape.width))) : 0;
        }
        words_t n = numbers.read();
        int64_t part = 0;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            n.v[lane] = b * FLOATS + lane < shape.width ? n.v[lane] - mean : 0;
            part += static_cast<int64_t>(n.v[lane]) * n.v[lane];
        }
        squares += part;
        centred.write(n);
        if (++b == shape.wide()) {
            const float variance = static_cast<float>(squares) / static_cast<float>(shape.width);
            roots.write(1.0f / sqrtf(variance + eps / (total.step * total.step)));
            squares = 0;
            b = 0;
        }
    }
}

void scale(hls::stream<words_t> &centred, hls::stream<float> &roots, const Groups &shape, const floats_t gain[MOST],
           const floats_t bias[MOST], int biased, hls::stream<floats_t> &to) {
    float root = 0.0f;
    int b = 0;
    for (int i = 0; i < shape.total(); i++) {
#pragma HLS PIPELINE II = 1
        if (b == 0) {
            root = roots.read();
        }
        const words_t n = centred.read();
        floats_t out;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            const float scaled = static_cast<float>(n.v[lane]) * root * gain[b].v[lane];
            const float value = biased ? scaled + bias[b].v[lane] : scaled;
            out.v[lane] = b * FLOATS + lane < shape.width ? value : 0.0f;
        }
        to.write(out);
        b = b + 1 == shape.wide() ? 0 : b + 1;
    }
}

void block(const floats_t *x, long stride, int start, const Groups &shape, int layer, int biased, float eps,
           const floats_t gain[MOST], const floats_t bias[MOST], floats_t *y) {
#pragma HLS DATAFLOW
    hls::stream<floats_t> beats_in("beats_in"), kept("kept"), out("out");
    hls::stream<words_t> numbers("numbers"), centred("centred");
    hls::stream<float> peaks("peaks"), roots("roots");
    hls::stream<Total> totals("totals");
#pragma HLS STREAM variable = beats_in depth = 64
#pragma HLS STREAM variable = kept depth = 592
#pragma HLS STREAM variable = numbers depth = 592
#pragma HLS STREAM variable = centred depth = 592
#pragma HLS BIND_STORAGE variable = kept type = fifo impl = uram
#pragma HLS BIND_STORAGE variable = numbers type = fifo impl = uram
#pragma HLS BIND_STORAGE variable = centred type = fifo impl = uram
#pragma HLS STREAM variable = peaks depth = 64
#pragma HLS STREAM variable = totals depth = 64
#pragma HLS STREAM variable = roots depth = 64
#pragma HLS STREAM variable = out depth = 64
    fetch(x, stride, start, shape, beats_in);
    measure(beats_in, shape, peaks, kept);
    count(kept, peaks, shape, numbers, totals);
    centre(numbers, totals, shape, layer, eps, centred, roots);
    scale(centred, roots, shape, gain, bias, biased, out);
    store_groups(out, shape, y);
}

}  // namespace

extern "C" void gt_norm(const gt::floats_t *x, const gt::floats_t *g, const gt::floats_t *b, gt::floats_t *y, int32_t rows,
                        int32_t x_stride, int32_t x_start, int32_t width, int32_t layer, int32_t biased, int32_t eps,
                        int32_t groups) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 num_read_outstanding = 64
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
    using namespace gt;
    GT_ONCHIP floats_t gain[MOST], bias[MOST];
#pragma HLS BIND_STORAGE variable = gain type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = bias type = ram_2p impl = bram
    for (int i = 0; i < beats(width, FLOATS); i++) {
#pragma HLS PIPELINE II = 1
        gain[i] = g[i];
    }
    for (int i = 0; biased && i < beats(width, FLOATS); i++) {
#pragma HLS PIPELINE II = 1
        bias[i] = b[i];
    }
    for (int row = 0; row < rows; row += BLOCK) {
        const Groups shape = {smaller(BLOCK, rows - row), groups, width};
        block(x + static_cast<long>(row) * x_stride, x_stride, x_start, shape, layer, biased, from_bits(eps), gain, bias,
              y + static_cast<long>(row) * beats(groups * width, FLOATS));
    }
}
