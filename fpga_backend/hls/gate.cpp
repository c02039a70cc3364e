// An activation by table: i = clamp(rne(x * 256), -4096, 4095) + 4096, then
//   PRODUCT  y = x * (f32(T[i]) * 2^-15)     gelu, gelu_tanh, silu
//   VALUE    y = f32(T[i]) * 2^-15           tanh
//   RELU     y = +0 if x <= 0 else x
// and y = y * up where it is gated;
//   SUM      y = x + up
#include "beats.h"
#include "numbers.h"

namespace {

using namespace gt;

constexpr int CHUNK = 1024;
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

}  // namespace

extern "C" void gt_gate(const gt::floats_t *x, const gt::floats_t *up, const gt::words_t *table, gt::floats_t *y, int32_t rows,
                        int32_t x_stride, int32_t x_start, int32_t up_stride, int32_t up_start, int32_t width, int32_t kind,
                        int32_t gated) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = up bundle = gmem0 max_read_burst_length = 64
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
    GT_ONCHIP int32_t entries[2 * GATE_HALF];  // a copy for every two lanes: a memory block has two ports
#pragma HLS BIND_STORAGE variable = entries type = rom_2p impl = bram
    if (kind == PRODUCT || kind == VALUE) {
        Words numbers(table);
        for (int i = 0; i < 2 * GATE_HALF; i++) {
#pragma HLS PIPELINE II = 1
            entries[i] = numbers[i];
        }
    }
    const long y_stride = beats(width, FLOATS);
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < width; column += CHUNK) {
            Row<CHUNK> in, other;
            float out[CHUNK];
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = other.v cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = out cyclic factor = 16
            const int wide = smaller(CHUNK, width - column);
            in.read(x, static_cast<long>(row) * x_stride, x_start + column, wide);
            for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
                out[j] = kind == SUM ? in[j] : activation(in[j], entries, kind);
            }
            if (gated || kind == SUM) {
                other.read(up, static_cast<long>(row) * up_stride, up_start + column, wide);
                for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
                    out[j] = kind == SUM ? out[j] + other[j] : out[j] * other[j];
                }
            }
            write_row(y, row * y_stride + column / FLOATS, out, wide);
        }
    }
}
