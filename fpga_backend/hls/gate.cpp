// An activation by table: i = clamp(rne(x * 256), -4096, 4095) + 4096, then
//   PRODUCT  y = x * (f32(T[i]) * 2^-15)     gelu, gelu_tanh, silu
//   VALUE    y = f32(T[i]) * 2^-15           tanh
//   RELU     y = +0 if x <= 0 else x
// and y = y * up where it is gated;
//   SUM      y = x + up
//
// Beats of both operands come in turn, one a clock, in a loop that does not end with a row; a second process computes and
// writes. BLOCK rows at a time.
#include "beats.h"
#include "numbers.h"
#include "stream.h"

namespace {

using namespace gt;

constexpr int BLOCK = 64;
enum Kind { PRODUCT = 0, VALUE = 1, RELU = 2, SUM = 3 };

float activation(float x, const int32_t table[2 * GATE_HALF], int kind) {
#pragma HLS INLINE
    if (kind == RELU) {
        return x <= 0.0f ? 0.0f : x;  // what is not a number stays one that is not
    }
    const float step = rne(x * static_cast<float>(GATE_STEP));
    const float low = step >= -GATE_HALF ? step : -static_cast<float>(GATE_HALF);
    const float inside = low <= GATE_HALF - 1 ? low : static_cast<float>(GATE_HALF - 1);
    const float entry = static_cast<float>(table[static_cast<int>(inside) + GATE_HALF]) * (1.0f / GATE_ONE);
    if (kind == VALUE) {
        return x == x ? entry : x;
    }
    return x * entry;
}

struct Slice {
    const floats_t *from;
    long stride;
    int start;
};

// Columns of both operands in beats of their own: the first column is the first lane.
void fetch(const Slice &x, const Slice &up, int operands, int rows, int width, hls::stream<floats_t> &xs,
           hls::stream<floats_t> &ups) {
    const int wide = beats(width, FLOATS);
    for (int row = 0; row < rows; row++) {
        floats_t before[2] = {};
        for (int b = 0; b <= wide; b++) {
            for (int operand = 0; operand < operands; operand++) {
#pragma HLS PIPELINE II = 1
                const Slice &slice = operand ? up : x;
                const int shift = slice.start % FLOATS;
                const bool more = b < beats(shift + width, FLOATS);
                const floats_t now = more ? slice.from[row * slice.stride + slice.start / FLOATS + b] : floats_t();
                floats_t out;
                for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                    const bool held = shift + lane < FLOATS;
                    out.v[lane] = (held ? before[operand] : now).v[(shift + lane) % FLOATS];
                }
                if (b > 0) {
                    (operand ? ups : xs).write(out);
                }
                before[operand] = now;
            }
        }
    }
}

void compute(hls::stream<floats_t> &xs, hls::stream<floats_t> &ups, const int32_t entries[FLOATS / 2][2 * GATE_HALF], int kind,
             int operands, int rows, int width, floats_t *y) {
    const int wide = beats(width, FLOATS);
    int b = 0;
    for (int i = 0; i < rows * wide; i++) {
#pragma HLS PIPELINE II = 1
        const floats_t in = xs.read();
        const floats_t other = operands == 2 ? ups.read() : floats_t();
        floats_t out;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            float value = in.v[lane];
            if (kind == SUM) {
                value = value + other.v[lane];
            } else {
                value = activation(value, entries[lane / 2], kind);
                value = operands == 2 ? value * other.v[lane] : value;
            }
            out.v[lane] = b * FLOATS + lane < width ? value : 0.0f;
        }
        y[i] = out;
        b = b + 1 == wide ? 0 : b + 1;
    }
}

void block(const Slice &x, const Slice &up, const int32_t entries[FLOATS / 2][2 * GATE_HALF], int kind, int operands, int rows,
           int width, floats_t *y) {
#pragma HLS DATAFLOW
    hls::stream<floats_t> xs("xs"), ups("ups");
#pragma HLS STREAM variable = xs depth = 64
#pragma HLS STREAM variable = ups depth = 64
    fetch(x, up, operands, rows, width, xs, ups);
    compute(xs, ups, entries, kind, operands, rows, width, y);
}

}  // namespace

extern "C" void gt_gate(const gt::floats_t *x, const gt::floats_t *up, const gt::words_t *table, gt::floats_t *y, int32_t rows,
                        int32_t x_stride, int32_t x_start, int32_t up_stride, int32_t up_start, int32_t width, int32_t kind,
                        int32_t gated) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = up bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = table bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = up_stride
#pragma HLS INTERFACE s_axilite port = up_start
#pragma HLS INTERFACE s_axilite port = width
#pragma HLS INTERFACE s_axilite port = kind
#pragma HLS INTERFACE s_axilite port = gated
#pragma HLS INTERFACE s_axilite port = return
    using namespace gt;
    GT_ONCHIP int32_t entries[FLOATS / 2][2 * GATE_HALF];  // a copy for every two lanes: a memory block has two ports
#pragma HLS ARRAY_PARTITION variable = entries complete dim = 1
#pragma HLS BIND_STORAGE variable = entries type = ram_2p impl = bram
    if (kind == PRODUCT || kind == VALUE) {
        Words numbers(table);
        for (int i = 0; i < 2 * GATE_HALF; i++) {
#pragma HLS PIPELINE II = 1
            const int32_t entry = numbers[i];
            for (int copy = 0; copy < FLOATS / 2; copy++) {
#pragma HLS UNROLL
                entries[copy][i] = entry;
            }
        }
    }
    const int operands = gated || kind == SUM ? 2 : 1;
    for (int row = 0; row < rows; row += BLOCK) {
        const Slice of_x = {x + static_cast<long>(row) * x_stride, x_stride, x_start};
        const Slice of_up = {up + static_cast<long>(row) * up_stride, up_stride, up_start};
        block(of_x, of_up, entries, kind, operands, smaller(BLOCK, rows - row), width,
              y + static_cast<long>(row) * beats(width, FLOATS));
    }
}
