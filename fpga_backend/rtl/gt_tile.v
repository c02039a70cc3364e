// One tile of an INT8 matrix product behind two streams with ready/valid handshakes.
//
// In:  K beats, each one k of the product: a[r] of the 2 * R2 rows and w[c] of the C columns, the last one marked by in_last.
//      Gaps (in_valid low) are allowed anywhere. Any K from 1 on; sums are exact as long as they fit 32 bits.
// Out: C beats, one column each, the LAST COLUMN FIRST: 2 * R2 sums, row r at bits 32 * r. out_last marks column 0.
//      The consumer may stall with out_ready.
//
// flush (one clock is enough) throws away the tile in progress, operands in flight included, also in the middle of the
// drain. reset does the same. Draining leaves zeros behind, so tiles follow each other without a clear.
//
// Time of a tile, streams never stalling: K clocks for the beats, R2 + C + 2 until the last product is in, C to drain: the
// next tile's first beat is taken K + R2 + 2 * C + 2 clocks after this one's.

`default_nettype none

module gt_tile #(
    parameter R2 = 8,  // row pairs, at least 1
    parameter C = 8    // columns, at least 1
) (
    input  wire             clk,
    input  wire             reset,
    input  wire             flush,
    input  wire             in_valid,
    output wire             in_ready,
    input  wire             in_last,
    input  wire [16*R2-1:0] in_a,       // row r at bits 8 * r
    input  wire [  8*C-1:0] in_w,       // column c at bits 8 * c
    output wire             out_valid,
    input  wire             out_ready,
    output wire             out_last,
    output wire [64*R2-1:0] out_sums
);

  localparam FLIGHT = R2 + C + 2;  // clocks from the last beat until its products are in the last sum

  localparam CLEAR = 2'd0;  // zeros push out what is in flight, sums are held at 0
  localparam LOAD = 2'd1;   // beats are accepted
  localparam WAIT = 2'd2;   // the last products travel
  localparam DRAIN = 2'd3;  // columns leave

  reg [1:0] state;
  reg [15:0] count;  // clocks left in CLEAR and WAIT, columns left in DRAIN, less 1

  wire accept = in_valid && in_ready;
  wire leave = out_valid && out_ready;
  assign in_ready = state == LOAD;
  assign out_valid = state == DRAIN;
  assign out_last = out_valid && count == 16'd0;

  always @(posedge clk) begin
    if (reset || flush) begin
      state <= CLEAR;
      count <= FLIGHT[15:0] - 16'd1;  // also a beat taken at this very clock arrives while sums are held
    end else
      case (state)
        CLEAR: begin
          count <= count - 16'd1;
          if (count == 16'd0) state <= LOAD;
        end
        LOAD:
        if (accept && in_last) begin
          state <= WAIT;
          count <= FLIGHT[15:0] - 16'd1;
        end
        WAIT: begin
          count <= count - 16'd1;
          if (count == 16'd0) begin
            state <= DRAIN;
            count <= C[15:0] - 16'd1;
          end
        end
        default:
        if (leave) begin
          count <= count - 16'd1;
          if (count == 16'd0) state <= LOAD;
        end
      endcase
  end

  wire [17*R2-1:0] packed_x, skewed_x;
  wire [8*C-1:0] skewed_w;
  reg  [8*C-1:0] w_q;  // beside the register of gt_pack

  genvar i;
  generate
    for (i = 0; i < R2; i = i + 1) begin : pair
      gt_pack pack (
          .clk(clk),
          .valid(accept),
          .a1(in_a[16*i+8+:8]),
          .a0(in_a[16*i+:8]),
          .x(packed_x[17*i+:17])
      );
    end
  endgenerate

  always @(posedge clk) w_q <= in_w;

  gt_skew #(
      .LANES(R2),
      .WIDTH(17)
  ) skew_x (
      .clk(clk),
      .in (packed_x),
      .out(skewed_x)
  );

  gt_skew #(
      .LANES(C),
      .WIDTH(8)
  ) skew_w (
      .clk(clk),
      .in (w_q),
      .out(skewed_w)
  );

  gt_array #(
      .R2(R2),
      .C (C)
  ) array (
      .clk(clk),
      .clear(state == CLEAR),
      .drain(leave),
      .x(skewed_x),
      .w(skewed_w),
      .sums(out_sums)
  );

endmodule

`default_nettype wire
