// Rotation of each head by its row's position: with h half a head,
//   y[j] = x[j] * cos[j] - x[j + h] * sin[j];   y[j + h] = x[j + h] * cos[j] + x[j] * sin[j]
//
// Stages are processes that pass beats on, BLOCK rows at a time. Halves of heads are groups of their own: the second half of
// a head meets the first one, which was kept, beat by beat, and leaves behind it.
#include "beats.h"
#include "groups.h"
#include "numbers.h"
#include "stream.h"

namespace {

using namespace gt;

constexpr int MOST = MAX_ROW / 2 / FLOATS;

// Cosines and sines of each row, and its halves of heads.
void fetch(const floats_t *x, long stride, int start, const floats_t *cos, const floats_t *sin, const words_t *positions,
           long first, const Groups &halves, hls::stream<floats_t> &angles, hls::stream<floats_t> &to) {
    Words places(positions);
    for (int row = 0; row < halves.rows; row++) {
        const long from = static_cast<long>(places[first + row]) * halves.wide();
        for (int b = 0; b < halves.wide(); b++) {
#pragma HLS PIPELINE II = 1
            angles.write(cos[from + b]);
        }
        for (int b = 0; b < halves.wide(); b++) {
#pragma HLS PIPELINE II = 1
            angles.write(sin[from + b]);
        }
        for (int half = 0; half < halves.groups; half++) {
            fetch_group(x, row * stride, start + half * halves.width, halves.width, to);
        }
    }
}

void turn(hls::stream<floats_t> &angles, hls::stream<floats_t> &from, const Groups &halves, hls::stream<floats_t> &to) {
    // what a beat is written to is read in the next clock where a half is one beat: registers in logic give that, blocks do not
    GT_ONCHIP floats_t cosines[MOST], sines[MOST], first[MOST], second[MOST];
#pragma HLS BIND_STORAGE variable = first type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = second type = ram_2p impl = lutram
    const int wide = halves.wide();
    for (int row = 0; row < halves.rows; row++) {
        for (int b = 0; b < 2 * wide; b++) {
#pragma HLS PIPELINE II = 1
            const floats_t beat = angles.read();
            if (b < wide) {
                cosines[b] = beat;
            } else {
                sines[b - wide] = beat;
            }
        }
        int part = 0, b = 0;  // of a head: its first half comes, its second half comes, the second half leaves
        for (int i = 0; i < halves.groups / 2 * 3 * wide; i++) {
#pragma HLS PIPELINE II = 1
            const floats_t in = part < 2 ? from.read() : floats_t();
            const floats_t x = first[b];
            const floats_t z = part == 1 ? in : second[b];
            floats_t out;
            for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
                const float c = cosines[b].v[lane], s = sines[b].v[lane];
                const float along = (part == 1 ? x : z).v[lane] * c, across = (part == 1 ? z : x).v[lane] * s;
                const float value = part == 1 ? along - across : along + across;
                out.v[lane] = b * FLOATS + lane < halves.width ? value : 0.0f;  // behind it memory holds whatever it holds
            }
            if (part == 0) {
                first[b] = in;
            } else {
                to.write(out);
            }
            if (part == 1) {
                second[b] = in;
            }
            if (++b == wide) {
                b = 0;
                part = part == 2 ? 0 : part + 1;
            }
        }
    }
}

void block(const floats_t *x, long stride, int start, const floats_t *cos, const floats_t *sin, const words_t *positions,
           long first, const Groups &halves, floats_t *y) {
#pragma HLS DATAFLOW
    hls::stream<floats_t> angles("angles"), beats_in("beats_in"), out("out");
#pragma HLS STREAM variable = angles depth = 1040
#pragma HLS BIND_STORAGE variable = angles type = fifo impl = uram
#pragma HLS STREAM variable = beats_in depth = 64
#pragma HLS STREAM variable = out depth = 64
    fetch(x, stride, start, cos, sin, positions, first, halves, angles, beats_in);
    turn(angles, beats_in, halves, out);
    store_groups(out, halves, y);
}

}  // namespace

extern "C" void gt_rotary(const gt::floats_t *x, const gt::floats_t *cos, const gt::floats_t *sin, const gt::words_t *positions,
                          gt::floats_t *y, int32_t rows, int32_t x_stride, int32_t x_start, int32_t heads, int32_t half) {
#pragma HLS INTERFACE m_axi port = x bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = cos bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = sin bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = positions bundle = gmem0
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = x_stride
#pragma HLS INTERFACE s_axilite port = x_start
#pragma HLS INTERFACE s_axilite port = heads
#pragma HLS INTERFACE s_axilite port = half
#pragma HLS INTERFACE s_axilite port = return
    using namespace gt;
    for (int row = 0; row < rows; row += BLOCK) {
        const Groups halves = {smaller(BLOCK, rows - row), 2 * heads, half};
        block(x + static_cast<long>(row) * x_stride, x_stride, x_start, cos, sin, positions, row, halves,
              y + static_cast<long>(row) * beats(2 * half * heads, FLOATS));
    }
}
