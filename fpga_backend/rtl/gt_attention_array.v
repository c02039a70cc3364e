// The array of hls/, one of the two of gt_attention: gt_stream with 32 rows and 32 columns, 512 multipliers.

`default_nettype none

module gt_attention_array (
    input  wire          ap_clk,
    input  wire          ap_rst,
    input  wire          ap_ce,
    input  wire          ap_start,
    input  wire          ap_continue,
    output wire          ap_idle,
    output wire          ap_ready,
    output wire          ap_done,
    input  wire [  31:0] depth,
    input  wire [  31:0] tiles,
    input  wire [ 255:0] a_dout,
    input  wire          a_empty_n,
    output wire          a_read,
    input  wire [ 255:0] w_dout,
    input  wire          w_empty_n,
    output wire          w_read,
    output wire [1023:0] sums_din,
    input  wire          sums_full_n,
    output wire          sums_write
);

  gt_stream #(
      .R2(16),
      .C (32)
  ) stream (
      .ap_clk(ap_clk),
      .ap_rst(ap_rst),
      .ap_ce(ap_ce),
      .ap_start(ap_start),
      .ap_continue(ap_continue),
      .ap_idle(ap_idle),
      .ap_ready(ap_ready),
      .ap_done(ap_done),
      .depth(depth),
      .tiles(tiles),
      .a_dout(a_dout),
      .a_empty_n(a_empty_n),
      .a_read(a_read),
      .w_dout(w_dout),
      .w_empty_n(w_empty_n),
      .w_read(w_read),
      .sums_din(sums_din),
      .sums_full_n(sums_full_n),
      .sums_write(sums_write)
  );

endmodule

`default_nettype wire
