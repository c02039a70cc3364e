# A hook of Vivado in front of placement (u55c.cfg, [vivado]): soft constraints, which the placer may break.
#
# NEVER RUN by this project. The names are those that Vitis HLS gives to instances of a function, U0 and on.
# An SLR has a third of the device's 9,024 DSPs (DS978); each array of gt_gemm takes 2,048 (calculated): one a region. What joins
# them are FIFOs, so that a register may stand in every wire that crosses.
foreach {array region} {gt_gemm_array_U0 SLR0 gt_gemm_array_1_U0 SLR1} {
    set cells [get_cells -quiet -hierarchical -filter "NAME =~ *gt_gemm_1*/$array"]
    if {[llength $cells]} {
        set_property USER_SLR_ASSIGNMENT $region $cells
    } else {
        puts "floorplan.tcl: no instance $array in gt_gemm_1: look up its name in the report of Vitis HLS"
    }
}
