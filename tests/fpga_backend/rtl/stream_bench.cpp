// Drives gt_stream in its Verilator model as the processes around it do: beats that come each `period` clocks, and a reader
// that stays away for `busy` clocks after each tile's last column.

#include <cstdint>
#include <cstring>
#include <vector>

#include "Vgt_stream.h"
#include "verilated.h"

namespace {
constexpr int64_t kRows = 2 * GT_R2;
constexpr int64_t kColumns = GT_C;
}  // namespace

#pragma GCC visibility push(default)
// a [tiles * depth][rows], w [tiles * depth][columns] in; sums [tiles][columns, the last first][rows] out. Clocks from the one with
// ap_start to the one with ap_done, both counted; -1 if the model is stuck or reads too much.
extern "C" int64_t gt_stream_run(const int8_t* a, const int8_t* w, int64_t depth, int64_t tiles, int64_t period, int64_t busy,
                                 int32_t* sums) {
  VerilatedContext context;
  context.randReset(2);
  context.randSeed(1);
  Vgt_stream top(&context);
  auto tick = [&top] {
    top.ap_clk = 0;
    top.eval();
    top.ap_clk = 1;
    top.eval();
  };
  top.ap_ce = 1;
  top.ap_rst = 1;
  top.ap_start = 0;
  top.ap_continue = 0;
  top.a_empty_n = top.w_empty_n = 0;
  top.sums_full_n = 0;
  tick();
  top.ap_rst = 0;
  for (int i = 0; i < GT_R2 + GT_C + 4; ++i) tick();  // the array clears itself after a reset
  top.ap_start = 1;
  top.depth = depth;
  top.tiles = tiles;
  const int64_t beats = depth * tiles, columns = kColumns * tiles;
  int64_t taken = 0, given = 0, next_beat = 0, away = 0;
  const int64_t patience = 100 + tiles * (depth * period + busy + 4 * (kRows + kColumns));
  for (int64_t clock = 1; clock < patience; ++clock) {
    const bool in = taken < beats && clock >= next_beat;
    if (in) {
      std::memcpy(&top.a_dout, a + taken * kRows, kRows);
      std::memcpy(&top.w_dout, w + taken * kColumns, kColumns);
    }
    top.a_empty_n = top.w_empty_n = in;
    top.sums_full_n = clock >= away;
    top.ap_clk = 0;
    top.eval();
    if (top.ap_done) {
      const bool right = taken == beats && given == columns;
      top.final();
      return right ? clock : -1;
    }
    if (top.a_read != top.w_read || (top.a_read && !in)) return -1;
    if (top.sums_write) {
      if (given == columns) return -1;
      std::memcpy(sums + given * kRows, &top.sums_din, kRows * sizeof(int32_t));
      if (++given % kColumns == 0) away = clock + 1 + busy;
    }
    if (top.a_read) {
      ++taken;
      next_beat = clock + period;
    }
    top.ap_clk = 1;
    top.eval();
    top.ap_start = 0;
  }
  return -1;
}
#pragma GCC visibility pop
