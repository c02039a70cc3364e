// Drives gt_tile in its Verilator model: one call is one matrix product, cut into tiles and padded with zeros.
//
// Compiled with -DGT_R2 and -DGT_C into a shared library (build.py). Host and ports are little-endian.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "Vgt_tile.h"
#include "verilated.h"

namespace {

constexpr int64_t kRows = 2 * GT_R2;
constexpr int64_t kColumns = GT_C;
constexpr int64_t kPatience = 1000 + 4 * (kRows + kColumns);  // clocks without progress until the model counts as stuck

struct Bench {
  VerilatedContext context;
  std::unique_ptr<Vgt_tile> top;
  uint64_t clocks = 0;

  Bench() {
    context.randReset(2);  // registers without a reset start anywhere, as the contract of gt_tile allows
    context.randSeed(1);
    top = std::make_unique<Vgt_tile>(&context);
    top->reset = 1;
    top->flush = 0;
    top->in_valid = 0;
    top->in_last = 0;
    top->out_ready = 0;
    std::memset(&top->in_a, 0, kRows);
    std::memset(&top->in_w, 0, kColumns);
    tick();
    top->reset = 0;
  }

  ~Bench() { top->final(); }

  void tick() {
    top->clk = 0;
    top->eval();
    top->clk = 1;
    top->eval();
    ++clocks;
  }

  // One tile: operands by beat, sums [rows, columns] out. False if the model is stuck.
  bool tile(const int8_t* a, const int8_t* w, int64_t k, int32_t* sums) {
    top->in_valid = 1;
    for (int64_t beat = 0, waited = 0; beat < k;) {
      top->in_last = beat == k - 1;
      std::memcpy(&top->in_a, a + beat * kRows, kRows);
      std::memcpy(&top->in_w, w + beat * kColumns, kColumns);
      const bool taken = top->in_ready;
      tick();
      beat += taken;
      waited = taken ? 0 : waited + 1;
      if (waited > kPatience) return false;
    }
    top->in_valid = 0;
    top->out_ready = 1;
    for (int64_t column = kColumns - 1, waited = 0; column >= 0;) {
      if (top->out_valid) {
        int32_t words[kRows];
        std::memcpy(words, &top->out_sums, sizeof words);
        for (int64_t row = 0; row < kRows; ++row) sums[row * kColumns + column] = words[row];
        if (static_cast<bool>(top->out_last) != (column == 0)) return false;
        --column;
        waited = 0;
      } else if (++waited > kPatience) {
        return false;
      }
      tick();
    }
    top->out_ready = 0;
    return true;
  }
};

// Beats of one block: line k holds element k of each of `lanes` rows of x [rows, k], zeros where there is no row.
void beats(const int8_t* x, int64_t first, int64_t rows, int64_t k, int64_t lanes, int8_t* out) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int8_t* row = first + lane < rows ? x + (first + lane) * k : nullptr;
    for (int64_t i = 0; i < k; ++i) out[i * lanes + lane] = row ? row[i] : 0;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void* gt_open() { return new Bench; }

void gt_close(void* bench) { delete static_cast<Bench*>(bench); }

uint64_t gt_clocks(const void* bench) { return static_cast<const Bench*>(bench)->clocks; }

// out[m, n] = a[m, k] * w[n, k]^T, int32 modulo 2^32. 0, or 1 if the model is stuck.
int gt_gemm(void* bench, const int8_t* a, const int8_t* w, int64_t m, int64_t n, int64_t k, int32_t* out) {
  auto& model = *static_cast<Bench*>(bench);
  std::vector<int8_t> a_beats(kRows * k), w_beats(kColumns * k);
  int32_t sums[kRows * kColumns];
  for (int64_t column = 0; column < n; column += kColumns) {
    beats(w, column, n, k, kColumns, w_beats.data());
    for (int64_t row = 0; row < m; row += kRows) {
      beats(a, row, m, k, kRows, a_beats.data());
      if (!model.tile(a_beats.data(), w_beats.data(), k, sums)) return 1;
      for (int64_t i = 0; i < kRows && row + i < m; ++i)
        for (int64_t j = 0; j < kColumns && column + j < n; ++j) out[(row + i) * n + column + j] = sums[i * kColumns + j];
    }
  }
  return 0;
}
}
#pragma GCC visibility pop
