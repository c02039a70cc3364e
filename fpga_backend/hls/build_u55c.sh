#!/bin/sh
# Builds the kernels for an Alveo U55C with Vitis 2022.1 or later: one object a kernel, then one xclbin.
#
# NEVER RUN by this project: there is neither a licence of Vitis nor a card here. The options are those of UG1393;
# nothing is known about resources, clock or run time.
#
#   ./build_u55c.sh [hw|hw_emu] [folder]
set -eu

target=${1:-hw}
out=${2:-build-$target}
platform=xilinx_u55c_gen3x16_xdma_3_202210_1
here=$(cd "$(dirname "$0")" && pwd)

command -v v++ >/dev/null || {
    echo "v++ is not on PATH: source settings64.sh of Vitis first" >&2
    exit 1
}
mkdir -p "$out"
objects=
for source in "$here"/*.cpp; do
    name=gt_$(basename "$source" .cpp)
    v++ --compile --target "$target" --platform "$platform" --kernel "$name" -I"$here" --save-temps \
        --temp_dir "$out/$name" --output "$out/$name.xo" "$source"
    objects="$objects $out/$name.xo"
done
# shellcheck disable=SC2086
v++ --link --target "$target" --config "$here/u55c.cfg" --save-temps --temp_dir "$out/link" \
    --output "$out/greentrain_u55c.xclbin" $objects
