// Groups of columns side by side in rows (heads, or a row as one of them) as streams of beats of their own: a group's first
// column is the first lane of its first beat, and zeros fill up its last one.
#pragma once

#include "beats.h"
#include "numbers.h"
#include "stream.h"

namespace gt {

constexpr int BLOCK = 64;  // rows that pass through a dataflow region at a time

struct Groups {
    int rows, groups, width;

    int wide() const { return beats(width, FLOATS); }
    int total() const { return rows * groups * wide(); }
};

// One group from where it lies in a row that starts at the beat `from`.
inline void fetch_group(const floats_t *x, long from, int column, int width, hls::stream<floats_t> &to) {
    const int shift = column % FLOATS;
    const int wide = beats(shift + width, FLOATS);
    floats_t before = {};
    for (int b = 0; b <= beats(width, FLOATS); b++) {
#pragma HLS PIPELINE II = 1
        const floats_t now = b < wide ? x[from + column / FLOATS + b] : floats_t();
        floats_t out;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            const bool in = (b - 1) * FLOATS + lane < width;
            const float value = shift + lane < FLOATS ? before.v[(shift + lane) % FLOATS] : now.v[(shift + lane) % FLOATS];
            out.v[lane] = in ? value : 0.0f;
        }
        if (b > 0) {
            to.write(out);
        }
        before = now;
    }
}

// The largest magnitude of each group, and the beats again: they wait in `kept` until it is known.
inline void measure(hls::stream<floats_t> &from, const Groups &shape, hls::stream<float> &peaks, hls::stream<floats_t> &kept) {
    Peak peak;
    int b = 0;
    for (int i = 0; i < shape.total(); i++) {
#pragma HLS PIPELINE II = 1
        const floats_t beat = from.read();
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            peak.see(beat.v[lane]);
        }
        kept.write(beat);
        if (++b == shape.wide()) {
            peaks.write(peak.value());
            peak = Peak();
            b = 0;
        }
    }
}

// Writes the groups of a row side by side again; each row starts with a beat, and zeros fill up its last one.
inline void store_groups(hls::stream<floats_t> &from, const Groups &shape, floats_t *y) {
    const int in_row = shape.groups * shape.wide();
    floats_t held = {};
    int filled = 0, b = 0, at = 0;
    long next = 0;
    for (int i = 0; i < shape.rows * (in_row + 1); i++) {
#pragma HLS PIPELINE II = 1
        const bool ends = at == in_row;  // one turn more a row: what is left over
        const floats_t beat = ends ? floats_t() : from.read();
        const int lanes = ends ? 0 : smaller(FLOATS, shape.width - b * FLOATS);
        floats_t out, rest;
        for (int lane = 0; lane < FLOATS; lane++) {
#pragma HLS UNROLL
            out.v[lane] = lane < filled ? held.v[lane] : beat.v[(lane - filled + FLOATS) % FLOATS];
            rest.v[lane] = lane < filled ? beat.v[(lane - filled + FLOATS) % FLOATS] : 0.0f;
        }
        const bool full = filled + lanes >= FLOATS;
        if (full || (ends && filled > 0)) {
            y[next++] = out;
        }
        held = full ? rest : out;
        filled = ends ? 0 : (filled + lanes) % FLOATS;
        b = b + 1 == shape.wide() ? 0 : b + 1;
        at = ends ? 0 : at + 1;
        b = ends ? 0 : b;
    }
}

}  // namespace gt
