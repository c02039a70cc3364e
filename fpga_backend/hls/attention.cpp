// Attention of 8-bit queries, keys and values over packed rows.
//
// A query sees the rows of its own segment and of that segment's parent, a prompt that several segments share; where causal,
// none behind it; with a window, none that is so many rows away or more. A tile of queries passes once over the keys, keeping its row of logits on the chip, then weighs, then
// passes once over the values:
//
//   t_j = rne((f32(q . k_j) * (qs * c)) * ks_j), softly capped before it is rounded where there is a cap;   e_j = E[min(max t - t_j, 4096)];   z = f32(sum e_j)
//   p, ps = quantise(f32(e_j) * vs_j);   y = f32(sum p_j v_j) * (ps / z)
#include "beats.h"
#include "numbers.h"

namespace {

using namespace gt;

constexpr int QUERIES = 16;
constexpr int KEYS = 32;
constexpr int MAX_HEAD = 512;
constexpr int FARTHEST = ATTENTION_OCTAVES * ATTENTION_STEP;

struct Heads {
    int queries, keys, key_beats, value_beats, value_width;
    float scale;
    bool causal;
    int window;
    float cap;
};

struct Segment {
    int start, rows, parent_start, parent_rows;

    long row(int key) const { return key < parent_rows ? parent_start + key : start + key - parent_rows; }
};

// Rows of `count` keys from `first` on, spread over lanes.
void load_keys(const bytes_t *from, const float *scales, const Segment &segment, int first, int count, int heads, int head,
               int row_beats, lane_t tile[KEYS][MAX_HEAD], float *scale) {
    for (int j = 0; j < count; j++) {
        const long number = segment.row(first + j) * heads + head;
        scale[first + j] = scales[number];
        for (int beat = 0; beat < row_beats; beat++) {
#pragma HLS PIPELINE II = 1
            const bytes_t lanes = from[number * row_beats + beat];
            for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
                tile[j][beat * BYTES + lane] = lanes.v[lane];
            }
        }
    }
}

int32_t dot(const lane_t a[MAX_HEAD], const lane_t b[MAX_HEAD], int row_beats) {
    int32_t sum = 0;
    for (int beat = 0; beat < row_beats; beat++) {
#pragma HLS PIPELINE II = 1
        for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
            sum += static_cast<int32_t>(a[beat * BYTES + lane]) * static_cast<int32_t>(b[beat * BYTES + lane]);
        }
    }
    return sum;
}

// cap * tanh(t / cap), with tanh as a fraction of polynomials that is 1 from 4 on.
float softly_capped(float t, float cap) {
    float z = t / cap;
    z = z > 4.0f ? 4.0f : z < -4.0f ? -4.0f : z;
    const float s = z * z;
    const float over = ((s + 105.0f) * s + 945.0f) * z;
    const float y = over / ((s * 15.0f + 420.0f) * s + 945.0f);
    return (y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y) * cap;
}

// Weights of one query over `keys` keys, as integers; returns ps / z.
float weigh(float *t, const float *value_scale, const int32_t powers[FARTHEST + 1], int keys, lane_t *weight) {
    float top = t[0];
    bool whole = true;
    for (int j = 0; j < keys; j++) {
#pragma HLS PIPELINE II = 1
        whole &= finite(t[j]);
        top = t[j] > top ? t[j] : top;
    }
    top = whole ? top : NAN;
    int32_t total = 0;
    Peak peak;
    for (int j = 0; j < keys; j++) {
#pragma HLS PIPELINE II = 1
        const float behind = top - t[j];
        const int d = behind < static_cast<float>(FARTHEST) ? static_cast<int>(behind) : FARTHEST;
        const int32_t e = powers[d];
        total += e;
        t[j] = static_cast<float>(e) * value_scale[j];
        peak.see(t[j]);
    }
    const float factor = factor_of<Q8>(peak.value());
    for (int j = 0; j < keys; j++) {
#pragma HLS PIPELINE II = 1
        weight[j] = static_cast<lane_t>(quantised<Q8>(t[j], factor));
    }
    return scale_of<Q8>(peak.value()) / static_cast<float>(total);
}

// One head of `count` queries from row `first` of a segment on.
void attend(const bytes_t *q, const float *qs, const bytes_t *k, const float *ks, const bytes_t *v, const float *vs,
            const int32_t powers[FARTHEST + 1], const Segment &segment, int first, int count, const Heads &heads, int head,
            float out[QUERIES][MAX_ROW]) {
    GT_ONCHIP lane_t query[QUERIES][MAX_HEAD], tile[KEYS][MAX_HEAD], weight[QUERIES][MAX_WIDTH];
    GT_ONCHIP float t[QUERIES][MAX_WIDTH], scale[MAX_WIDTH];
    GT_ONCHIP int32_t acc[QUERIES][MAX_HEAD];
#pragma HLS ARRAY_PARTITION variable = query cyclic factor = 64 dim = 2
#pragma HLS ARRAY_PARTITION variable = tile cyclic factor = 64 dim = 2
#pragma HLS ARRAY_PARTITION variable = acc cyclic factor = 64 dim = 2
#pragma HLS BIND_STORAGE variable = t type = ram_2p impl = uram
    float query_scale[QUERIES], last[QUERIES];
    const int kv_head = head / (heads.queries / heads.keys);
    const int place = segment.parent_rows + first;  // of the tile's first query in its sequence
    const int whole = segment.parent_rows + segment.rows;
    const int behind = heads.causal ? 1 : heads.window > 0 ? heads.window : whole;
    const int seen = smaller(place + count - 1 + behind, whole);
    const int before = heads.window > 0 && place >= heads.window ? place + 1 - heads.window : 0;
    const int begin = before - before % KEYS;
    for (int i = 0; i < count; i++) {
        const long number = static_cast<long>(segment.start + first + i) * heads.queries + head;
        query_scale[i] = qs[number] * heads.scale;
        for (int beat = 0; beat < heads.key_beats; beat++) {
#pragma HLS PIPELINE II = 1
            const bytes_t lanes = q[number * heads.key_beats + beat];
            for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
                query[i][beat * BYTES + lane] = lanes.v[lane];
            }
        }
    }
    for (int key = begin; key < seen; key += KEYS) {
        const int wide = smaller(KEYS, seen - key);
        load_keys(k, ks, segment, key, wide, heads.keys, kv_head, heads.key_beats, tile, scale);
        for (int i = 0; i < count; i++) {
            for (int j = 0; j < wide; j++) {
                const float product = static_cast<float>(dot(query[i], tile[j], heads.key_beats));
                const float logit = product * query_scale[i] * scale[key + j];
                t[i][key + j] = rne(heads.cap > 0 ? softly_capped(logit, heads.cap) : logit);
            }
        }
    }
    for (int key = begin; key < seen; key++) {
#pragma HLS PIPELINE II = 1
        scale[key] = vs[segment.row(key) * heads.keys + kv_head];
    }
    const int value_lanes = heads.value_beats * BYTES;
    for (int i = 0; i < count; i++) {
        const int from = heads.window > 0 && place + i >= heads.window ? place + i + 1 - heads.window : 0;
        const int own = smaller(place + i + behind, whole);
        last[i] = weigh(t[i] + from, scale + from, powers, own - from, weight[i] + from);
        for (int key = begin; key < from; key++) {
#pragma HLS PIPELINE II = 1
            weight[i][key] = 0;
        }
        for (int key = own; key < seen; key++) {
#pragma HLS PIPELINE II = 1
            weight[i][key] = 0;
        }
        for (int d = 0; d < value_lanes; d++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 64
            acc[i][d] = 0;
        }
    }
    for (int key = begin; key < seen; key += KEYS) {
        const int wide = smaller(KEYS, seen - key);
        load_keys(v, vs, segment, key, wide, heads.keys, kv_head, heads.value_beats, tile, scale);
        for (int i = 0; i < count; i++) {
            for (int j = 0; j < wide; j++) {
                const int32_t p = weight[i][key + j];
                for (int d = 0; d < value_lanes; d++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 64
                    acc[i][d] += p * tile[j][d];
                }
            }
        }
    }
    for (int i = 0; i < count; i++) {
        for (int d = 0; d < heads.value_width; d++) {
#pragma HLS PIPELINE II = 1
            out[i][head * heads.value_width + d] = static_cast<float>(acc[i][d]) * last[i];
        }
    }
}

}  // namespace

extern "C" void gt_attention(const gt::bytes_t *q, const float *qs, const gt::bytes_t *k, const float *ks,
                             const gt::bytes_t *v, const float *vs, const int32_t *exp2, const int32_t *segments,
                             gt::floats_t *y, int32_t segment_count, int32_t heads, int32_t kv_heads, int32_t key_beats,
                             int32_t value_beats, int32_t value_width, int32_t scale, int32_t causal, int32_t window,
                             int32_t softcap) {
#pragma HLS INTERFACE m_axi port = q bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = qs bundle = gmem0
#pragma HLS INTERFACE m_axi port = k bundle = gmem1 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = ks bundle = gmem1
#pragma HLS INTERFACE m_axi port = v bundle = gmem2 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = vs bundle = gmem2
#pragma HLS INTERFACE m_axi port = exp2 bundle = gmem3 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = segments bundle = gmem3
#pragma HLS INTERFACE m_axi port = y bundle = gmem4 max_write_burst_length = 64
#pragma HLS INTERFACE s_axilite port = segment_count
#pragma HLS INTERFACE s_axilite port = heads
#pragma HLS INTERFACE s_axilite port = kv_heads
#pragma HLS INTERFACE s_axilite port = key_beats
#pragma HLS INTERFACE s_axilite port = value_beats
#pragma HLS INTERFACE s_axilite port = value_width
#pragma HLS INTERFACE s_axilite port = scale
#pragma HLS INTERFACE s_axilite port = causal
#pragma HLS INTERFACE s_axilite port = window
#pragma HLS INTERFACE s_axilite port = softcap
#pragma HLS INTERFACE s_axilite port = return
    GT_ONCHIP float out[QUERIES][MAX_ROW];
    GT_ONCHIP int32_t powers[FARTHEST + 1];
#pragma HLS BIND_STORAGE variable = out type = ram_2p impl = uram
    for (int octave = 0; octave < ATTENTION_OCTAVES; octave++) {
        for (int step = 0; step < ATTENTION_STEP; step++) {
#pragma HLS PIPELINE II = 1
            const int32_t entry = exp2[step * ((1 << EXP_BITS) / ATTENTION_STEP)];
            powers[octave * ATTENTION_STEP + step] = entry >> (ATTENTION_SHIFT + octave);
        }
    }
    powers[FARTHEST] = 0;
    const Heads shape = {heads, kv_heads, key_beats, value_beats, value_width, from_bits(scale), causal != 0, window,
                         from_bits(softcap)};
    const int width = heads * value_width;
    const long y_stride = beats(width, FLOATS);
    for (int s = 0; s < segment_count; s++) {
        const Segment segment = {segments[4 * s], segments[4 * s + 1], segments[4 * s + 2], segments[4 * s + 3]};
        for (int first = 0; first < segment.rows; first += QUERIES) {
            const int count = smaller(QUERIES, segment.rows - first);
            for (int head = 0; head < heads; head++) {
                attend(q, qs, k, ks, v, vs, powers, segment, first, count, shape, head, out);
            }
            for (int i = 0; i < count; i++) {
                write_row(y, (segment.start + first + i) * y_stride, out[i], width);
            }
        }
    }
}
