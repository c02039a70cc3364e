// Packs two INT8 activations for gt_dual_mac: {a1 - (a0 < 0), a0}. Once at the array's edge, not once a multiplier.
//
// Latency: 1 clock. While valid is low a pair of zeros is packed, which adds nothing to any sum.

`default_nettype none

module gt_pack (
    input  wire               clk,
    input  wire               valid,
    input  wire signed [ 7:0] a1,
    input  wire signed [ 7:0] a0,
    output reg         [16:0] x
);

  wire signed [8:0] high = {a1[7], a1} - {8'd0, a0[7]};  // -129 for a1 = -128, a0 < 0: hence 9 bits

  always @(posedge clk) x <= valid ? {high, a0} : 17'd0;

endmodule

`default_nettype wire
