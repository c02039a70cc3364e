// Constants and arithmetic of the integer contract (CONTRACT.md, contract.py): binary32 one operation after the other,
// rne, and exact integers. A test compares each constant with contract.py.
#pragma once

#include <cmath>
#include <cstdint>

namespace gt {

constexpr int Q8 = 127;
constexpr int Q16 = 32767;
constexpr int DIGIT_BASE = 255;
constexpr int Q16D = 32512;
constexpr int Q20 = 524287;
constexpr int MAX_WIDTH = 8192;
constexpr int MAX_INNER = 131072;
constexpr int GATE_STEP = 256;
constexpr int GATE_HALF = 4096;
constexpr int GATE_ONE = 32768;
constexpr int EXP_BITS = 12;
constexpr int ATTENTION_STEP = 256;
constexpr int ATTENTION_OCTAVES = 16;
constexpr int ATTENTION_SHIFT = 15;
constexpr int LOGPROB_STEP = 4096;
constexpr int LOGPROB_OCTAVES = 30;
constexpr int MAX_ROW = 16384;  // columns of a register that a kernel holds as a whole; the schedule keeps to it
constexpr float ROW_FLOOR = 0x1p-40f;
constexpr double LOG2E = 1.4426950408889634;
constexpr double LN2 = 0.6931471805599453;

union word_t {
    float f;
    uint32_t u;
    int32_t i;
};

inline float from_bits(int32_t bits) {
    word_t word;
    word.i = bits;
    return word.f;
}

// Nearest integer, ties to even; the rounding mode is the default one.
inline float rne(float x) { return rintf(x); }

// The largest magnitude of a row, by its bits: they are ordered as the numbers are, and NaN above all. So a number that is
// not finite comes through every scale to the result, where the host sees it.
class Peak {
  public:
    Peak() : bits(0) {}
    void see(float x) {
        word_t word;
        word.f = x;
        const uint32_t magnitude = word.u & 0x7fffffffu;
        bits = magnitude > bits ? magnitude : bits;
    }
    float value() const {
        word_t word;
        word.u = bits;
        return word.f < ROW_FLOOR ? ROW_FLOOR : word.f;
    }

  private:
    uint32_t bits;
};

// Scale of a quantised row whose peak is `peak`, and the factor that its elements are multiplied by.
template <int Q>
inline float scale_of(float peak) {
    return peak * static_cast<float>(1.0 / Q);
}
template <int Q>
inline float factor_of(float peak) {
    return static_cast<float>(Q) / peak;
}

// The integer of an element. What is not finite gives some integer within the bound.
template <int Q>
inline int32_t quantised(float x, float factor) {
    const float n = rne(x * factor);
    return n >= -Q && n <= Q ? static_cast<int32_t>(n) : 0;
}

// The high digit of an integer within Q16D: floor((n + 127) / 255), by a quotient that is not negative. The low one is
// n - 255 * high; both are within Q8.
inline int32_t high_digit(int32_t n) { return (n + Q8 + Q8 * DIGIT_BASE) / DIGIT_BASE - Q8; }

inline bool finite(float x) { return std::fabs(x) <= 0x1.fffffep127f; }

}  // namespace gt
