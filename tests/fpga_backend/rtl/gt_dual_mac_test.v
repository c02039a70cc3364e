// gt_pack and gt_dual_mac as they meet at the array's upper left corner.

`default_nettype none

module gt_dual_mac_test (
    input  wire               clk,
    input  wire               clear,
    input  wire               valid,
    input  wire signed [ 7:0] a1,
    input  wire signed [ 7:0] a0,
    input  wire signed [ 7:0] w,
    output wire        [31:0] sum_1,
    output wire        [31:0] sum_0
);

  wire [16:0] x;
  reg signed [7:0] w_q;
  always @(posedge clk) w_q <= w;

  gt_pack pack (
      .clk(clk),
      .valid(valid),
      .a1(a1),
      .a0(a0),
      .x(x)
  );

  gt_dual_mac mac (
      .clk(clk),
      .clear(clear),
      .drain(1'b0),
      .x_in(x),
      .w_in(w_q),
      .left_1(32'd0),
      .left_0(32'd0),
      .x_out(),
      .w_out(),
      .sum_1(sum_1),
      .sum_0(sum_0)
  );

endmodule

`default_nettype wire
