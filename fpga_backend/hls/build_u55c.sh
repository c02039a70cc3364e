#!/bin/sh
# Builds the kernels for an Alveo U55C with Vitis 2023.2 or later: one object a kernel, then one xclbin.
#
# NEVER RUN by this project: there is neither a licence of Vitis nor a card here. The options are those of UG1399 ("C-Synthesis
# Sources") and UG1393; nothing is known about resources, clock or run time.
#
#   ./build_u55c.sh [hw|hw_emu] [folder]
set -eu

target=${1:-hw}
mkdir -p "${2:-build-$target}"
out=$(cd "${2:-build-$target}" && pwd)
platform=xilinx_u55c_gen3x16_xdma_3_202210_1
here=$(cd "$(dirname "$0")" && pwd)

command -v v++ >/dev/null || {
    echo "v++ is not on PATH: source settings64.sh of Vitis first" >&2
    exit 1
}
objects=
for source in "$here"/*.cpp; do
    name=gt_$(basename "$source" .cpp)
    {
        echo "[hls]"
        echo "flow_target=vitis"
        echo "package.output.format=xo"
        echo "package.output.file=$out/$name.xo"
        echo "clock=250MHz"
        echo "syn.top=$name"
        echo "syn.file=$source"
        echo "syn.cflags=-I$here"
        if [ -f "$here/${name}_array.json" ]; then  # the array of ../rtl
            echo "syn.blackbox.file=$here/${name}_array.json"
        fi
    } >"$out/$name.cfg"
    v++ --compile --mode hls --platform "$platform" --config "$out/$name.cfg" --work_dir "$out/$name"
    objects="$objects $out/$name.xo"
done
cp "$here/floorplan.tcl" "$out"
# shellcheck disable=SC2086
(cd "$out" && v++ --link --target "$target" --config "$here/u55c.cfg" --save-temps --temp_dir "$out/link" \
    --output "$out/greentrain_u55c.xclbin" $objects)
