// Tries gt_pack and gt_dual_mac with all 65,536 pairs (w, a0), for one a1, and counts the sums that are wrong.
//
// The module under it, gt_dual_mac_test, joins the two; a model of the sums in plain C++ runs beside.

#include <cstdint>

#include "Vgt_dual_mac_test.h"
#include "verilated.h"

namespace {

constexpr int kDelay = 4;  // clocks between the one that takes a product in and the one that adds it

// A sum as it should be: the product of t clocks ago enters at t.
struct Expected {
  uint32_t sum = 0;
  int32_t products[kDelay] = {};

  uint32_t next(int32_t product) {
    sum += static_cast<uint32_t>(products[kDelay - 1]);
    for (int i = kDelay - 1; i > 0; --i) products[i] = products[i - 1];
    products[0] = product;
    return sum;
  }
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" int64_t gt_dual_mac_check(int a1, int64_t* wrong) {
  VerilatedContext context;
  Vgt_dual_mac_test top(&context);
  auto tick = [&top] {
    top.clk = 0;
    top.eval();
    top.clk = 1;
    top.eval();
  };
  top.clear = 1;
  top.valid = 0;
  for (int i = 0; i < 2 * kDelay; ++i) tick();
  top.clear = 0;
  Expected one, zero;
  int64_t tried = 0;
  *wrong = 0;
  auto step = [&](int w, int a0, bool valid) {
    top.valid = valid;
    top.a1 = static_cast<uint8_t>(a1);
    top.a0 = static_cast<uint8_t>(a0);
    top.w = static_cast<uint8_t>(w);
    tick();
    const bool right = top.sum_1 == one.next(valid ? a1 * w : 0) && top.sum_0 == zero.next(valid ? a0 * w : 0);
    *wrong += !right;
  };
  for (int w = -128; w < 128; ++w)
    for (int a0 = -128; a0 < 128; ++a0, ++tried) step(w, a0, true);
  for (int i = 0; i < kDelay; ++i) step(-128, -128, false);  // the last products arrive; what is not valid adds nothing
  top.final();
  return tried;
}
#pragma GCC visibility pop
