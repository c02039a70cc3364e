// Attention of 8-bit queries, keys and values over packed rows.
//
// A query sees the rows of its own segment and of that segment's parent, a prompt that several segments share; where causal,
// none behind it; with a window, none that is so many rows away or more. A tile of QUERIES queries of a head passes once over the keys, keeping its logits on the chip, then weighs,
// then passes over the values, KEYS columns at a time:
//
//   t_j = rne((f32(q . k_j) * (qs * c)) * ks_j), softly capped before it is rounded where there is a cap;   e_j = E[min(max t - t_j, 4096)];   z = f32(sum e_j)
//   p, ps = quantise(f32(e_j) * vs_j);   y = f32(sum p_j v_j) * (ps / z)
//
// Both products are tiles of the array of ../rtl. The stages are processes of one dataflow region, so that a head's keys are
// multiplied while the one before is weighed and the one before that meets its values. roofline/cycles.py counts the same
// schedule.
#include "beats.h"
#include "numbers.h"
#include "stream.h"
#include "tile.h"

namespace gt {

constexpr int QUERIES = 32;
constexpr int KEYS = 32;
constexpr int MAX_HEAD = 512;
constexpr int LANES = 16;  // queries that a clock weighs
constexpr int FARTHEST = ATTENTION_OCTAVES * ATTENTION_STEP;

typedef lanes_t<QUERIES> queries_t;
typedef lanes_t<KEYS> keys_t;
typedef column_t<QUERIES> products_t;

struct Line {
    float v[QUERIES];
};

}  // namespace gt

// gt_attention_array.v in synthesis.
void gt_attention_array(hls::stream<gt::queries_t> &a, hls::stream<gt::keys_t> &w, hls::stream<gt::products_t> &sums,
                        int32_t depth, int32_t tiles)
#ifdef __SYNTHESIS__
    ;
#else
{
    gt::tiles_of<gt::QUERIES, gt::KEYS>(a, w, sums, depth, tiles);
}
#endif

namespace {

using namespace gt;

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

// A tile of queries of one head, and what it sees.
struct Part {
    Segment segment;
    int first, count, head, kv_head;

    // Keys are numbered along the sequence, the parent's first. Query i sees those from from(i) to own(i), the tile those
    // from from(0) to own(count - 1).
    int place(int query) const { return segment.parent_rows + first + query; }
    int from(const Heads &heads, int query) const {
        return heads.window > 0 && place(query) >= heads.window ? place(query) + 1 - heads.window : 0;
    }
    int own(const Heads &heads, int query) const {
        const int whole = segment.parent_rows + segment.rows;
        const int behind = heads.causal ? 1 : heads.window > 0 ? heads.window : whole;
        return smaller(place(query) + behind, whole);
    }
    int begin(const Heads &heads) const { return from(heads, 0); }
    int seen(const Heads &heads) const { return own(heads, count - 1); }
    bool sees(const Heads &heads, int query, int key) const { return key >= from(heads, query) && key < own(heads, query); }
};

// All that port 0 reads of a part, in loops that ask for a beat a clock: short rows, but none waits for the one before.
void fetch(const bytes_t *q, const floats_t *qs, const bytes_t *k, const floats_t *ks, const floats_t *vs, const Part &part,
           const Heads &heads, hls::stream<bytes_t> &query_beats, hls::stream<bytes_t> &key_beats,
           hls::stream<Line> &query_scales, hls::stream<float> &key_scales, hls::stream<float> &value_scales) {
    const int seen = part.seen(heads);
    const long query = (static_cast<long>(part.segment.start) + part.first) * heads.queries + part.head;
    Floats scale_of_query(qs), scale_of_key(ks), scale_of_value(vs);
    Line scales = {};
    for (int i = 0; i < part.count; i++) {
#pragma HLS PIPELINE II = 1
        scales.v[i] = scale_of_query[query + static_cast<long>(i) * heads.queries] * heads.scale;
    }
    query_scales.write(scales);
    for (int i = 0; i < part.count; i++) {
        for (int beat = 0; beat < heads.key_beats; beat++) {
#pragma HLS PIPELINE II = 1
            query_beats.write(q[(query + static_cast<long>(i) * heads.queries) * heads.key_beats + beat]);
        }
    }
    for (int key = part.begin(heads); key < seen; key++) {
#pragma HLS PIPELINE II = 1
        key_scales.write(scale_of_key[part.segment.row(key) * heads.keys + part.kv_head]);
    }
    for (int key = part.begin(heads); key < seen; key++) {
#pragma HLS PIPELINE II = 1
        value_scales.write(scale_of_value[part.segment.row(key) * heads.keys + part.kv_head]);
    }
    for (int key = part.begin(heads); key < seen; key++) {
        for (int beat = 0; beat < heads.key_beats; beat++) {
#pragma HLS PIPELINE II = 1
            key_beats.write(k[(part.segment.row(key) * heads.keys + part.kv_head) * heads.key_beats + beat]);
        }
    }
}

// Takes `count` rows of `row_beats` beats: feature d of row i into bank (i + d) % BYTES.
void take(hls::stream<bytes_t> &from, int count, int row_beats, int8_t held[MAX_HEAD][BYTES]) {
#pragma HLS INLINE
    for (int i = 0; i < count; i++) {
        for (int beat = 0; beat < row_beats; beat++) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = held inter false
            const bytes_t lanes = from.read();
            for (int lane = 0; lane < BYTES; lane++) {
#pragma HLS UNROLL
                held[beat * BYTES + lane][(i + lane) & (BYTES - 1)] = lanes.v[lane];
            }
        }
    }
}

// Turns queries once and keys a tile at a time, so that a feature of all of them leaves in a clock.
void turn(hls::stream<bytes_t> &query_beats, hls::stream<bytes_t> &key_beats, const Part &part, const Heads &heads,
          hls::stream<queries_t> &a, hls::stream<keys_t> &w) {
    GT_ONCHIP int8_t query[MAX_HEAD][BYTES], key[MAX_HEAD][BYTES];
#pragma HLS ARRAY_PARTITION variable = query complete dim = 2
#pragma HLS ARRAY_PARTITION variable = key complete dim = 2
    const int seen = part.seen(heads);
    take(query_beats, part.count, heads.key_beats, query);
    for (int first = part.begin(heads); first < seen; first += KEYS) {
        take(key_beats, smaller(KEYS, seen - first), heads.key_beats, key);
        for (int d = 0; d < heads.key_beats * BYTES; d++) {
#pragma HLS PIPELINE II = 1
            int8_t left[BYTES], right[BYTES];
            rotate<int8_t, BYTES>(query[d], -d, left);
            rotate<int8_t, BYTES>(key[d], -d, right);
            queries_t of_queries;
            keys_t of_keys;
            for (int i = 0; i < QUERIES; i++) {
#pragma HLS UNROLL
                of_queries.v[i] = left[i];
                of_keys.v[i] = right[i];
            }
            a.write(of_queries);
            w.write(of_keys);
        }
    }
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

// Products of a tile of keys to logits in steps, and each query's largest; NaN where one of its logits is not finite.
void logits(hls::stream<products_t> &products, hls::stream<Line> &query_scales, hls::stream<float> &key_scales,
            const Part &part, const Heads &heads, Line t[MAX_WIDTH], Line &tops) {
    const Line scales = query_scales.read();
    const int seen = part.seen(heads);
    Line top;
    bool whole[QUERIES];
    for (int i = 0; i < QUERIES; i++) {
#pragma HLS UNROLL
        whole[i] = true;
        top.v[i] = -INFINITY;
    }
    for (int first = part.begin(heads); first < seen; first += KEYS) {
        const int wide = smaller(KEYS, seen - first);
        float of_key[KEYS] = {};
        for (int j = 0; j < wide; j++) {
#pragma HLS PIPELINE II = 1
            of_key[j] = key_scales.read();
        }
        for (int j = KEYS - 1; j >= 0; j--) {  // columns leave the array the last one first
#pragma HLS PIPELINE II = 2
            const products_t column = products.read();
            if (j < wide) {
                for (int i = 0; i < QUERIES; i++) {
#pragma HLS UNROLL factor = 16
                    const float exact = static_cast<float>(column.v[i]) * scales.v[i] * of_key[j];
                    const float logit = rne(heads.cap > 0 ? softly_capped(exact, heads.cap) : exact);
                    t[first + j].v[i] = logit;
                    if (part.sees(heads, i, first + j)) {
                        whole[i] &= finite(logit);
                        top.v[i] = logit > top.v[i] ? logit : top.v[i];
                    }
                }
            }
        }
    }
    for (int i = 0; i < QUERIES; i++) {
#pragma HLS UNROLL
        tops.v[i] = whole[i] ? top.v[i] : NAN;
    }
}

// Weights of the queries over the keys, as integers, and ps / z of each: two passes, LANES queries a clock.
void weigh(Line t[MAX_WIDTH], const Line &tops, hls::stream<float> &value_scales, const int32_t powers[FARTHEST + 1],
           const Part &part, const Heads &heads, queries_t weights[MAX_WIDTH], Line &last) {
    const int seen = part.seen(heads);
    int32_t total[QUERIES] = {};
    Peak peak[QUERIES];
    for (int key = part.begin(heads); key < seen; key++) {
        const float of_value = value_scales.read();
        for (int i = 0; i < QUERIES; i++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            const float behind = tops.v[i] - t[key].v[i];
            const int d = behind < static_cast<float>(FARTHEST) ? static_cast<int>(behind) : FARTHEST;
            const bool own = part.sees(heads, i, key);
            const int32_t e = own ? powers[d] : 0;
            total[i] += e;
            const float weight = static_cast<float>(e) * of_value;
            t[key].v[i] = weight;
            if (own) {
                peak[i].see(weight);
            }
        }
    }
    float factor[QUERIES];
    for (int i = 0; i < QUERIES; i++) {
#pragma HLS PIPELINE II = 1
        factor[i] = factor_of<Q8>(peak[i].value());
        last.v[i] = scale_of<Q8>(peak[i].value()) / static_cast<float>(total[i]);
    }
    for (int key = part.begin(heads); key < seen; key++) {
        for (int i = 0; i < QUERIES; i++) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
            const int32_t p = quantised<Q8>(t[key].v[i], factor[i]);
            weights[key].v[i] = part.sees(heads, i, key) ? static_cast<int8_t>(p) : static_cast<int8_t>(0);
        }
    }
}

// Passes over the values, KEYS of their columns at a time, and gives the array weights and values of a key a clock.
void spread(const bytes_t *v, const queries_t weights[MAX_WIDTH], const Part &part, const Heads &heads,
            hls::stream<queries_t> &a, hls::stream<keys_t> &w) {
    const int seen = part.seen(heads);
    for (int column = 0; column < heads.value_width; column += KEYS) {
        for (int key = part.begin(heads); key < seen; key++) {
#pragma HLS PIPELINE II = 1
            const long number = part.segment.row(key) * heads.keys + part.kv_head;
            const bytes_t lanes = v[number * heads.value_beats + column / BYTES];
            keys_t right;
            for (int lane = 0; lane < KEYS; lane++) {
#pragma HLS UNROLL
                right.v[lane] = lanes.v[column % BYTES + lane];
            }
            a.write(weights[key]);
            w.write(right);
        }
    }
}

// Scales a head's sums into its columns of the queries' rows; the last head's writes them.
void finish(hls::stream<products_t> &sums, const Line &last, const Part &part, const Heads &heads, floats_t *y) {
    GT_KEPT float out[QUERIES][MAX_ROW];
#pragma HLS BIND_STORAGE variable = out type = ram_2p impl = uram
#pragma HLS ARRAY_PARTITION variable = out cyclic factor = 16 dim = 1
    for (int column = 0; column < heads.value_width; column += KEYS) {
        for (int j = KEYS - 1; j >= 0; j--) {
#pragma HLS PIPELINE II = 2
            const products_t sum = sums.read();
            if (column + j < heads.value_width) {
                for (int i = 0; i < QUERIES; i++) {
#pragma HLS UNROLL factor = 16
                    out[i][part.head * heads.value_width + column + j] = static_cast<float>(sum.v[i]) * last.v[i];
                }
            }
        }
    }
    if (part.head + 1 == heads.queries) {
        const int width = heads.queries * heads.value_width;
        for (int i = 0; i < part.count; i++) {
            write_row(y, static_cast<long>(part.segment.start + part.first + i) * beats(width, FLOATS), out[i], width);
        }
    }
}

void attend(const bytes_t *q, const floats_t *qs, const bytes_t *k, const floats_t *ks, const bytes_t *v, const floats_t *vs,
            const int32_t powers[FARTHEST + 1], floats_t *y, const Part &part, const Heads &heads) {
#pragma HLS DATAFLOW
    GT_ONCHIP Line t[MAX_WIDTH];
    GT_ONCHIP queries_t weights[MAX_WIDTH];
#pragma HLS BIND_STORAGE variable = t type = ram_2p impl = uram
#pragma HLS BIND_STORAGE variable = weights type = ram_2p impl = uram
    Line tops, last;
    hls::stream<queries_t> a("a"), p("p");
    hls::stream<keys_t> w("w"), values("values");
    hls::stream<products_t> products("products"), sums("sums");
    hls::stream<Line> query_scales("query_scales");
    hls::stream<float> key_scales("key_scales"), value_scales("value_scales");
    hls::stream<bytes_t> query_beats("query_beats"), key_beats("key_beats");
#pragma HLS STREAM variable = a depth = 16
#pragma HLS STREAM variable = w depth = 16
#pragma HLS STREAM variable = p depth = 64
#pragma HLS STREAM variable = values depth = 64
#pragma HLS STREAM variable = products depth = 2
#pragma HLS STREAM variable = sums depth = 2
#pragma HLS STREAM variable = query_scales depth = 2
#pragma HLS STREAM variable = query_beats depth = 64
#pragma HLS STREAM variable = key_beats depth = 512
#pragma HLS STREAM variable = key_scales depth = 8192
#pragma HLS STREAM variable = value_scales depth = 8192
    const int keys = part.seen(heads) - part.begin(heads);
    fetch(q, qs, k, ks, vs, part, heads, query_beats, key_beats, query_scales, key_scales, value_scales);
    turn(query_beats, key_beats, part, heads, a, w);
    gt_attention_array(a, w, products, heads.key_beats * BYTES, beats(keys, KEYS));
    logits(products, query_scales, key_scales, part, heads, t, tops);
    weigh(t, tops, value_scales, powers, part, heads, weights, last);
    spread(v, weights, part, heads, p, values);
    gt_attention_array(p, values, sums, keys, beats(heads.value_width, KEYS));
    finish(sums, last, part, heads, y);
}

}  // namespace

extern "C" void gt_attention(const gt::bytes_t *q, const gt::floats_t *qs, const gt::bytes_t *k, const gt::floats_t *ks,
                             const gt::bytes_t *v, const gt::floats_t *vs, const gt::words_t *exp2,
                             const gt::words_t *segments, gt::floats_t *y, int32_t segment_count, int32_t heads,
                             int32_t kv_heads, int32_t key_beats, int32_t value_beats, int32_t value_width, int32_t scale,
                             int32_t causal, int32_t window, int32_t softcap) {
#pragma HLS INTERFACE m_axi port = q bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = qs bundle = gmem0
#pragma HLS INTERFACE m_axi port = k bundle = gmem0 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = ks bundle = gmem0
#pragma HLS INTERFACE m_axi port = v bundle = gmem1 num_read_outstanding = 64
#pragma HLS INTERFACE m_axi port = vs bundle = gmem0
#pragma HLS INTERFACE m_axi port = exp2 bundle = gmem0 max_read_burst_length = 64
#pragma HLS INTERFACE m_axi port = segments bundle = gmem0
#pragma HLS INTERFACE m_axi port = y bundle = gmem0 max_write_burst_length = 64
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
    GT_ONCHIP int32_t powers[FARTHEST + 1];
    Words entries(exp2), lines(segments);
    for (int octave = 0; octave < ATTENTION_OCTAVES; octave++) {
        for (int step = 0; step < ATTENTION_STEP; step++) {
#pragma HLS PIPELINE II = 1
            powers[octave * ATTENTION_STEP + step] =
                entries[step * ((1 << EXP_BITS) / ATTENTION_STEP)] >> (ATTENTION_SHIFT + octave);
        }
    }
    powers[FARTHEST] = 0;
    const Heads shape = {heads, kv_heads, key_beats, value_beats, value_width, from_bits(scale), causal != 0, window,
                         from_bits(softcap)};
    for (int s = 0; s < segment_count; s++) {
        const Segment segment = {lines[4 * s], lines[4 * s + 1], lines[4 * s + 2], lines[4 * s + 3]};
        for (int first = 0; first < segment.rows; first += QUERIES) {
            for (int head = 0; head < heads; head++) {
                const Part part = {segment, first, smaller(QUERIES, segment.rows - first), head, head / (heads / kv_heads)};
                attend(q, qs, k, ks, v, vs, powers, y, part, shape);
            }
        }
    }
}
