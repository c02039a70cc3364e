// Log-probability of a wanted token from a row of logits over the whole vocabulary:
//   t = rne(l * f32(log2(e) * 4096));   d = min(max t - t, 122880);   S = sum exp2[d % 4096] >> (d / 4096)
//   y = f32(min(0, l_u - (max t * (ln 2 / 4096) + ln S)))            the last line in binary64
//
// Stages are processes that pass beats on, ROWS rows at a time. Memory is asked for each row twice, one reading behind the other:
// a row of the largest vocabulary does not fit the chip, and while the second reading begins, the largest logit gets known.
#include "beats.h"
#include "numbers.h"
#include "stream.h"

namespace {

using namespace gt;

constexpr int ROWS = 32;
constexpr int STEPS = 1 << EXP_BITS;
constexpr int FARTHEST = LOGPROB_OCTAVES * LOGPROB_STEP;

float steps_of(float logit) {
#pragma HLS INLINE
    return rne(logit * static_cast<float>(LOG2E * LOGPROB_STEP));
}

struct Top {
    float steps;  // NaN where a logit is not finite
    float wanted;
};

struct Sum {
    Top top;
    int64_t of;
};

void fetch(const floats_t *logits, const words_t *ids, long first, int rows, int wide, hls::stream<int32_t> &wanted,
           hls::stream<floats_t> &once, hls::stream<floats_t> &again) {
    Words wanted_ids(ids);
    for (int row = 0; row < rows; row++) {
        wanted.write(wanted_ids[first + row]);
        for (int i = 0; i < 2 * wide; i++) {
#pragma HLS PIPELINE II = 1
            const int b = i < wide ? i : i - wide;
            const floats_t beat = logits[static_cast<long>(row) * wide + b];
            if (i < wide) {
                once.write(beat);
            } else {
                again.write(beat);
            }
        }
    }
}

void find_top(hls::stream<int32_t> &wanted, hls::stream<floats_t> &once, int rows, int wide, int vocabulary, hls::stream<Top> &tops) {
    Top top = {};
    bool whole = true;
    int id = 0, b = 0;
    for (int i = 0; i < rows * wide; i++) {
#pragma HLS PIPELINE II = 1
        if (b == 0) {
            id = wanted.read();
            top.steps = -INFINITY;
            whole = true;
        }
        const floats_t beat = once.read();
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            const int column = b * FLOATS + lane;
            const float t = steps_of(beat.v[lane]);
            const bool inside = column < vocabulary;
            whole &= !inside || finite(t);
            top.steps = inside && t > top.steps ? t : top.steps;
            top.wanted = column == id ? beat.v[lane] : top.wanted;
        }
        if (++b == wide) {
            top.steps = whole ? top.steps : NAN;
            tops.write(top);
            b = 0;
        }
    }
}

void add(hls::stream<Top> &tops, hls::stream<floats_t> &again, const int32_t powers[FLOATS / 2][STEPS], int rows, int wide,
         int vocabulary, hls::stream<Sum> &sums) {
    Sum sum = {};
    int b = 0;
    for (int i = 0; i < rows * wide; i++) {
#pragma HLS PIPELINE II = 1
        if (b == 0) {
            sum.top = tops.read();
            sum.of = 0;
        }
        const floats_t beat = again.read();
        int64_t part = 0;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            const float behind = sum.top.steps - steps_of(beat.v[lane]);
            const bool far = !(behind < static_cast<float>(FARTHEST)) || b * FLOATS + lane >= vocabulary;
            const int d = far ? FARTHEST : static_cast<int>(behind);
            part += far ? 0 : powers[lane / 2][d % STEPS] >> (d / STEPS);
        }
        sum.of += part;
        if (++b == wide) {
            sums.write(sum);
            b = 0;
        }
    }
}

// ln(S / 2^30) of 2^30 <= S < 2^53.
double ln_of(int64_t sum, const doubles_t ln[STEPS / DOUBLES]) {
    int top = 30;
    for (int bit = 31; bit < 53; bit++) {
#pragma HLS UNROLL
        top = (sum >> bit) & 1 ? bit : top;
    }
    const int entry = static_cast<int>(sum >> (top - EXP_BITS)) & (STEPS - 1);
    const int64_t base = static_cast<int64_t>(STEPS + entry) << (top - EXP_BITS);
    const double octaves = static_cast<double>(top - 30) * LN2;
    return (octaves + ln[entry / DOUBLES].v[entry % DOUBLES]) + static_cast<double>(sum - base) / static_cast<double>(base);
}

void finish(hls::stream<Sum> &sums, const doubles_t ln[STEPS / DOUBLES], int rows, long first, floats_t *y) {
    FloatWriter out(y);
    for (int row = 0; row < rows; row++) {
        const Sum sum = sums.read();
        const double lse = static_cast<double>(sum.top.steps) * (LN2 / LOGPROB_STEP) + ln_of(sum.of, ln);
        const double gap = static_cast<double>(sum.top.wanted) - lse;
        out.put(first + row, static_cast<float>(gap > 0.0 ? 0.0 : gap));
    }
    out.flush();
}

void block(const floats_t *logits, const words_t *ids, const int32_t powers[FLOATS / 2][STEPS], const doubles_t ln[STEPS / DOUBLES],
           int rows, int vocabulary, long first, floats_t *y) {
#pragma HLS DATAFLOW
    hls::stream<int32_t> wanted("wanted");
    hls::stream<floats_t> once("once"), again("again");
    hls::stream<Top> tops("tops");
    hls::stream<Sum> sums("sums");
#pragma HLS STREAM variable = wanted depth = 32
#pragma HLS STREAM variable = once depth = 64
#pragma HLS STREAM variable = again depth = 128
#pragma HLS STREAM variable = tops depth = 32
#pragma HLS STREAM variable = sums depth = 32
    const int wide = beats(vocabulary, FLOATS);
    fetch(logits, ids, first, rows, wide, wanted, once, again);
    find_top(wanted, once, rows, wide, vocabulary, tops);
    add(tops, again, powers, rows, wide, vocabulary, sums);
    finish(sums, ln, rows, first, y);
}

}  // namespace

extern "C" void gt_logprob(const gt::floats_t *logits, const gt::words_t *ids, const gt::words_t *exp2,
                           const gt::doubles_t *ln, gt::floats_t *y, int32_t rows, int32_t vocabulary, int32_t first) {
#pragma HLS INTERFACE m_axi port = logits bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = ids bundle = gmem0
#pragma HLS INTERFACE m_axi port = exp2 bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = ln bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = y bundle = gmem0
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = vocabulary
#pragma HLS INTERFACE s_axilite port = first
#pragma HLS INTERFACE s_axilite port = return
    GT_ONCHIP int32_t powers[FLOATS / 2][STEPS];  // a copy for every two lanes: a memory block has two ports
    GT_ONCHIP doubles_t logarithms[STEPS / DOUBLES];
#pragma HLS ARRAY_PARTITION variable = powers complete dim = 1
    Words entries(exp2);
    for (int i = 0; i < STEPS; i++) {
#pragma HLS PIPELINE II = 1
        const int32_t entry = entries[i];
        for (int copy = 0; copy < FLOATS / 2; copy++) {
#pragma HLS UNROLL
            powers[copy][i] = entry;
        }
    }
    for (int i = 0; i < STEPS / DOUBLES; i++) {
#pragma HLS PIPELINE II = 1
        logarithms[i] = ln[i];
    }
    const long stride = beats(vocabulary, FLOATS);
    for (int row = 0; row < rows; row += ROWS) {
        block(logits + row * stride, ids, powers, logarithms, smaller(ROWS, rows - row), vocabulary, first + row, y);
    }
}
