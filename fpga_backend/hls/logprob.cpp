// Log-probability of a wanted token from a row of logits over the whole vocabulary:
//   t = rne(l * f32(log2(e) * 4096));   d = min(max t - t, 122880);   S = sum exp2[d % 4096] >> (d / 4096)
//   y = f32(min(0, l_u - (max t * (ln 2 / 4096) + ln S)))            the last line in binary64
#include "beats.h"
#include "numbers.h"

namespace {

using namespace gt;

constexpr int CHUNK = 4096;
constexpr int STEPS = 1 << EXP_BITS;
constexpr int FARTHEST = LOGPROB_OCTAVES * LOGPROB_STEP;

float steps_of(float logit) {
#pragma HLS INLINE
    return rne(logit * static_cast<float>(LOG2E * LOGPROB_STEP));
}

// The largest of a row in steps, or NaN where one is not finite.
float top_of(const floats_t *logits, long first_beat, int vocabulary) {
    float top = steps_of(logits[first_beat].v[0]);
    bool whole = true;
    for (int column = 0; column < vocabulary; column += CHUNK) {
        Row<CHUNK> in;
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
        const int wide = smaller(CHUNK, vocabulary - column);
        in.read(logits, first_beat, column, wide);
        for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            const float t = steps_of(in[j]);
            whole &= finite(t);
            top = t > top ? t : top;
        }
    }
    return whole ? top : NAN;
}

int64_t sum_of(const floats_t *logits, long first_beat, int vocabulary, float top, const int32_t powers[FLOATS / 2][STEPS]) {
    int64_t sum = 0;
    for (int column = 0; column < vocabulary; column += CHUNK) {
        Row<CHUNK> in;
#pragma HLS ARRAY_PARTITION variable = in.v cyclic factor = 16
        const int wide = smaller(CHUNK, vocabulary - column);
        in.read(logits, first_beat, column, wide);
        for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            const float behind = top - steps_of(in[j]);
            const int d = behind < static_cast<float>(FARTHEST) ? static_cast<int>(behind) : FARTHEST;
            sum += d == FARTHEST ? 0 : powers[j % FLOATS / 2][d % STEPS] >> (d / STEPS);
        }
    }
    return sum;
}

// ln(S / 2^30) of 2^30 <= S < 2^53.
double ln_of(int64_t sum, const doubles_t *ln) {
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

}  // namespace

extern "C" void gt_logprob(const gt::floats_t *logits, const gt::words_t *ids, const gt::words_t *exp2,
                           const gt::doubles_t *ln, gt::floats_t *y, int32_t rows, int32_t vocabulary, int32_t first) {
#pragma HLS INTERFACE m_axi port = logits bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = ids bundle = gmem0
#pragma HLS INTERFACE m_axi port = exp2 bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = ln bundle = gmem0
#pragma HLS INTERFACE m_axi port = y bundle = gmem0
#pragma HLS INTERFACE s_axilite port = rows
#pragma HLS INTERFACE s_axilite port = vocabulary
#pragma HLS INTERFACE s_axilite port = first
#pragma HLS INTERFACE s_axilite port = return
    GT_ONCHIP int32_t powers[FLOATS / 2][STEPS];  // a copy for every two lanes: a memory block has two ports
#pragma HLS ARRAY_PARTITION variable = powers complete dim = 1
    Words entries(exp2), wanted_ids(ids);
    FloatWriter out(y);
    for (int i = 0; i < STEPS; i++) {
#pragma HLS PIPELINE II = 1
        const int32_t entry = entries[i];
        for (int copy = 0; copy < FLOATS / 2; copy++) {
#pragma HLS UNROLL
            powers[copy][i] = entry;
        }
    }
    const long stride = beats(vocabulary, FLOATS);
    for (int row = 0; row < rows; row++) {
        const int id = wanted_ids[first + row];
        const float wanted = logits[row * stride + id / FLOATS].v[id % FLOATS];
        const float top = top_of(logits, row * stride, vocabulary);
        const int64_t sum = sum_of(logits, row * stride, vocabulary, top, powers);
        const double lse = static_cast<double>(top) * (LN2 / LOGPROB_STEP) + ln_of(sum, ln);
        const double gap = static_cast<double>(wanted) - lse;
        out.put(first + row, static_cast<float>(gap > 0.0 ? 0.0 : gap));
    }
    out.flush();
}
