// Two INT8 multiply-accumulates with one 27 x 18 multiplier (a DSP48E2).
//
// Two activations of one weight share the multiplier: x = a1 * 2^18 + a0, so that
//
//     x * w = a1 * w * 2^18 + a0 * w,     |a0 * w| <= 2^14 < 2^17
//
// Bits 15..0 are a0 * w. Where that is negative it has borrowed one from the upper product; bit 17, its sign, says so and
// is given back as the carry into the upper sum.
//
// x comes packed as 17 bits {a1 - (a0 < 0), a0}, as gt_pack makes it; bits 17..8 of the 27 are copies of a0's sign.
//
// Sums are a link of a chain from left to right: while drain is high each takes its left neighbour's. That costs no LUT
// over the adder, because sum + product and left + product are one adder; the product must then be 0 (nothing in flight).
//
// Latency: sums hold the product of x_in and w_in after 4 clocks; x_out, w_out after 1. All ports but clk are of clk.

`default_nettype none

module gt_dual_mac (
    input  wire               clk,
    input  wire               clear,     // sums become 0 at the next clock
    input  wire               drain,     // sums become left_* at the next clock
    input  wire        [16:0] x_in,      // packed pair of activations, from the left
    input  wire signed [ 7:0] w_in,      // weight, from above
    input  wire        [31:0] left_1,    // sums of the left neighbour
    input  wire        [31:0] left_0,
    output reg         [16:0] x_out,     // to the right
    output reg  signed [ 7:0] w_out,     // to below
    output reg         [31:0] sum_1,     // of a1 * w, modulo 2^32
    output reg         [31:0] sum_0      // of a0 * w
);

  wire signed [26:0] x = {x_out[16:8], {10{x_out[7]}}, x_out[7:0]};

  reg signed [34:0] m;  // the multiplier's own register
  reg signed [34:0] p;  // the DSP's output register

  // sum + product as product - ~sum - 1: a subtraction keeps the selection in the adder's own LUTs, where yosys would sort
  // the operands of an addition and put it before them (32 LUTs a sum). A bit below, p[17] or 0 less 1, does the -1 and
  // the carry.
  wire [31:0] next_1, next_0;
  wire low_1, low_0;
  assign {next_1, low_1} = {{16{p[33]}}, p[33:18], p[17]} - {~(drain ? left_1 : sum_1), 1'b1};
  assign {next_0, low_0} = {{16{p[15]}}, p[15:0], 1'b0} - {~(drain ? left_0 : sum_0), 1'b1};

  always @(posedge clk) begin
    x_out <= x_in;
    w_out <= w_in;
    m <= x * w_out;
    p <= m;
    if (clear) begin
      sum_1 <= 32'd0;
      sum_0 <= 32'd0;
    end else begin
      sum_1 <= next_1;
      sum_0 <= next_0;
    end
  end

  wire unused = &{1'b0, low_1, low_0, p[34], p[16]};

endmodule

`default_nettype wire
