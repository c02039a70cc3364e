// gt_tile behind three FIFOs and the control of a block of Vitis HLS: `tiles` tiles of `depth` beats each, then done.
//
// Ports are those of an RTL black box (UG1399, "Adding RTL Blackbox Functions"): ap_ctrl_chain, and FIFOs with
// dout/empty_n/read and din/full_n/write. While ap_ce is low no beat is taken and none given.
//
// Time, no FIFO waiting: a tile each depth + R2 + 2 * C + 2 clocks; START clocks more from ap_start to ap_done.

`default_nettype none

module gt_stream #(
    parameter R2 = 8,  // row pairs
    parameter C = 8    // columns
) (
    input  wire             ap_clk,
    input  wire             ap_rst,
    input  wire             ap_ce,
    input  wire             ap_start,
    input  wire             ap_continue,
    output wire             ap_idle,
    output wire             ap_ready,
    output wire             ap_done,
    input  wire [     31:0] depth,       // at least 1
    input  wire [     31:0] tiles,       // at least 1
    input  wire [16*R2-1:0] a_dout,
    input  wire             a_empty_n,
    output wire             a_read,
    input  wire [  8*C-1:0] w_dout,
    input  wire             w_empty_n,
    output wire             w_read,
    output wire [64*R2-1:0] sums_din,
    input  wire             sums_full_n,
    output wire             sums_write
);

  localparam IDLE = 2'd0;
  localparam RUN = 2'd1;
  localparam DONE = 2'd2;

  reg [1:0] state;
  reg [31:0] last;     // beats of a tile, less 1
  reg [31:0] beat;     // of the tile that is being loaded
  reg [31:0] loading;  // tiles that are not loaded whole
  reg [31:0] leaving;  // tiles that have not left whole, less 1

  wire in_ready, out_valid, out_last;
  wire in_last = beat == last;
  wire in_valid = state == RUN && loading != 32'd0 && a_empty_n && w_empty_n && ap_ce;
  wire take = in_valid && in_ready;
  wire out_ready = sums_full_n && ap_ce;

  assign a_read = take;
  assign w_read = take;
  assign sums_write = out_valid && out_ready;
  assign ap_idle = state == IDLE && !ap_start;
  assign ap_done = state == DONE;
  assign ap_ready = ap_done && ap_continue;

  always @(posedge ap_clk) begin
    if (ap_rst) state <= IDLE;
    else
      case (state)
        IDLE:
        if (ap_start && ap_ce) begin
          state <= RUN;
          last <= depth - 32'd1;
          beat <= 32'd0;
          loading <= tiles;
          leaving <= tiles - 32'd1;
        end
        RUN: begin
          if (take) begin
            beat <= in_last ? 32'd0 : beat + 32'd1;
            if (in_last) loading <= loading - 32'd1;
          end
          if (sums_write && out_last) begin
            leaving <= leaving - 32'd1;
            if (leaving == 32'd0) state <= DONE;
          end
        end
        default: if (ap_continue) state <= IDLE;
      endcase
  end

  gt_tile #(
      .R2(R2),
      .C (C)
  ) tile (
      .clk(ap_clk),
      .reset(ap_rst),
      .flush(1'b0),
      .in_valid(in_valid),
      .in_ready(in_ready),
      .in_last(in_last),
      .in_a(a_dout),
      .in_w(w_dout),
      .out_valid(out_valid),
      .out_ready(out_ready),
      .out_last(out_last),
      .out_sums(sums_din)
  );

endmodule

`default_nettype wire
