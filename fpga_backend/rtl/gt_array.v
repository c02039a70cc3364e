// Output-stationary systolic array of R2 x C dual multipliers: a tile of 2 * R2 rows and C columns of a product, exact
// modulo 2^32. Activations flow right, weights flow down, sums stay until they are drained to the right.
//
// Row pair i takes its activations i clocks after row pair 0, column j its weight j clocks after column 0 (gt_skew).
// Latency: an operand pair that enters row pair 0 and column 0 at one clock is in every sum R2 + C + 2 clocks later.

`default_nettype none

module gt_array #(
    parameter R2 = 8,  // row pairs
    parameter C = 8    // columns
) (
    input  wire             clk,
    input  wire             clear,   // all sums become 0
    input  wire             drain,   // sums move one column to the right, zeros enter on the left
    input  wire [17*R2-1:0] x,       // packed activations of each row pair
    input  wire [  8*C-1:0] w,       // weight of each column
    output wire [64*R2-1:0] sums     // of the last column: row r at bits 32 * r
);

  genvar i, j;
  generate
    for (i = 0; i < R2; i = i + 1) begin : row
      for (j = 0; j < C; j = j + 1) begin : col
        wire [16:0] right;
        wire [7:0] down;
        wire [31:0] sum_1, sum_0;
        wire [16:0] x_in;
        wire [7:0] w_in;
        wire [31:0] left_1, left_0;
        if (j == 0) begin : first_col
          assign x_in = x[17*i+:17];
          assign left_1 = 32'd0;
          assign left_0 = 32'd0;
        end else begin : later_col
          assign x_in = row[i].col[j-1].right;
          assign left_1 = row[i].col[j-1].sum_1;
          assign left_0 = row[i].col[j-1].sum_0;
        end
        if (i == 0) begin : first_row
          assign w_in = w[8*j+:8];
        end else begin : later_row
          assign w_in = row[i-1].col[j].down;
        end
        gt_dual_mac mac (
            .clk(clk),
            .clear(clear),
            .drain(drain),
            .x_in(x_in),
            .w_in(w_in),
            .left_1(left_1),
            .left_0(left_0),
            .x_out(right),
            .w_out(down),
            .sum_1(sum_1),
            .sum_0(sum_0)
        );
      end
      assign sums[64*i+:64] = {row[i].col[C-1].sum_1, row[i].col[C-1].sum_0};
    end
  endgenerate

endmodule

`default_nettype wire
