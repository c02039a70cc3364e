// Delays lane i by i clocks, so that a row of operands enters the array as a diagonal. Lane 0 passes through.
//
// No reset: synthesis may make shift registers (SRL) of it. Zeros that enter push out whatever was in it.

`default_nettype none

module gt_skew #(
    parameter LANES = 8,
    parameter WIDTH = 8
) (
    input  wire                   clk,
    input  wire [LANES*WIDTH-1:0] in,
    output wire [LANES*WIDTH-1:0] out
);

  genvar i;
  generate
    for (i = 0; i < LANES; i = i + 1) begin : lane
      if (i == 0) begin : straight
        assign out[WIDTH-1:0] = in[WIDTH-1:0];
      end else begin : delayed
        reg [WIDTH*i-1:0] line;
        if (i == 1) begin : one
          always @(posedge clk) line <= in[i*WIDTH+:WIDTH];
        end else begin : more
          always @(posedge clk) line <= {line[WIDTH*(i-1)-1:0], in[i*WIDTH+:WIDTH]};
        end
        assign out[i*WIDTH+:WIDTH] = line[WIDTH*(i-1)+:WIDTH];
      end
    end
  endgenerate

endmodule

`default_nettype wire
