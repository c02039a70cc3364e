/* A fake libamd_smi.so for AMD's own Python bindings (amdsmi 7.0.2, whose ctypes structures give the layouts).
 * Modelled: an accumulator of 15.259 uJ with a time stamp in ns, power in W, caps in uW, performance determinism as an
 * upper bound of the graphics clock that the level AUTO undoes, and partitions: devices of one socket, of which only
 * the first tells energy and power. Every other function of the bindings is a stub that answers NOT_SUPPORTED. */
#include "common.h"

enum { SUCCESS = 0, INVAL = 1, NOT_SUPPORTED = 2, NO_PERM = 10, DRIVER_NOT_LOADED = 34 };
#define UNIT_UJ 15.259f
static char handles[MAX_GPUS], sockets[MAX_GPUS];

#define DEVICE(h) \
    int64_t i = (char *)(h) - handles; \
    if (!ready() || i < 0 || i >= state->gpus) return INVAL; \
    if (code_of(__func__, i)) return (int)code_of(__func__, i); \
    gpu *g = &state->gpu[i]; \
    (void)g;

API int amdsmi_init(uint64_t flags) { (void)flags; return ready() ? (int)state->init_code : DRIVER_NOT_LOADED; }
API int amdsmi_shut_down(void) { return SUCCESS; }

API int amdsmi_get_socket_handles(uint32_t *n, void **out) {
    uint32_t found = 0;
    for (int64_t i = 0; i < count(); i++)
        if (state->gpu[i].partition == 0) {
            if (out) out[found] = &sockets[i];
            found++;
        }
    *n = found;
    return SUCCESS;
}

API int amdsmi_get_processor_handles(void *socket, uint32_t *n, void **out) {
    int64_t first = (char *)socket - sockets;
    uint32_t found = 0;
    for (int64_t i = first; i < count() && (i == first || state->gpu[i].partition > 0); i++) {
        if (out) out[found] = &handles[i];
        found++;
    }
    *n = found;
    return SUCCESS;
}

API int amdsmi_get_gpu_device_bdf(void *h, uint64_t *bdf) {
    DEVICE(h)
    *bdf = (uint64_t)g->partition | (uint64_t)(i - g->partition + 1) << 8;
    return SUCCESS;
}
API int amdsmi_get_gpu_device_uuid(void *h, uint32_t *n, char *out) {
    DEVICE(h)
    strncpy(out, g->uuid, *n);
    return SUCCESS;
}
typedef struct { uint32_t render, card, hsa_id, hip_id; char hip_uuid[256]; } enumeration_info;
API int amdsmi_get_gpu_enumeration_info(void *h, enumeration_info *out) {
    DEVICE(h)
    out->render = out->card = 0;
    out->hsa_id = (uint32_t)g->hip_id + 1;
    out->hip_id = (uint32_t)g->hip_id;
    strcpy(out->hip_uuid, "GPU-");
    strcat(out->hip_uuid, g->uuid);
    return SUCCESS;
}
typedef struct __attribute__((packed)) {
    char market_name[256]; uint32_t vendor_id; char vendor_name[256]; uint32_t subvendor_id; uint64_t device_id;
    uint32_t rev_id; char asic_serial[256]; uint32_t oam_id, compute_units; char pad[4]; uint64_t version;
    uint32_t subsystem_id, reserved[21];
} asic_info;
API int amdsmi_get_gpu_asic_info(void *h, asic_info *out) {
    DEVICE(h)
    memset(out, 0, sizeof *out);
    strcpy(out->market_name, g->name);
    strcpy(out->asic_serial, "1");
    return SUCCESS;
}
API int amdsmi_get_energy_count(void *h, uint64_t *value, float *unit_uj, uint64_t *time_ns) {
    DEVICE(h)
    if (g->partition) return NOT_SUPPORTED;
    double device_s, j = counter_j(g, &device_s);
    *unit_uj = UNIT_UJ;
    *value = (uint64_t)(1e6 * j / (double)UNIT_UJ);
    *time_ns = (uint64_t)(1e9 * device_s);
    return SUCCESS;
}
typedef struct { uint64_t socket; uint32_t current, average; uint64_t gfx_mv, soc_mv, mem_mv; uint32_t limit, pad; uint64_t reserved[18]; } power_info;
API int amdsmi_get_power_info(void *h, power_info *out) {
    DEVICE(h)
    if (g->partition) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->current = code_of("current_socket_power", i) ? 0xFFFF : (uint32_t)power_at_w(g, now_s());
    out->average = (uint32_t)power_at_w(g, now_s());
    out->socket = out->average;
    return SUCCESS;
}
API int amdsmi_get_power_cap_info(void *h, uint32_t sensor, uint64_t *out) {
    (void)sensor;
    DEVICE(h)
    out[0] = 1000ull * (uint64_t)g->limit_mw;
    out[1] = 1000ull * (uint64_t)g->limit_default_mw;
    out[2] = 0;
    out[3] = 1000ull * (uint64_t)g->limit_min_mw;
    out[4] = 1000ull * (uint64_t)g->limit_max_mw;
    return SUCCESS;
}
API int amdsmi_set_power_cap(void *h, uint32_t sensor, uint64_t cap_uw) {
    (void)sensor;
    DEVICE(h)
    if (!g->may_set) return NO_PERM;
    int64_t mw = (int64_t)(cap_uw / 1000);
    if (mw < g->limit_min_mw || mw > g->limit_max_mw) return INVAL;
    g->limit_mw = mw;
    g->sets++;
    return SUCCESS;
}
API int amdsmi_get_gpu_activity(void *h, uint32_t *out) {
    DEVICE(h)
    out[0] = (uint32_t)g->utilisation;
    out[1] = (uint32_t)g->memory;
    out[2] = 0xFFFF;
    return SUCCESS;
}
API int amdsmi_get_temp_metric(void *h, uint32_t sensor, uint32_t metric, int64_t *out) {
    (void)sensor, (void)metric;
    DEVICE(h)
    *out = g->temperature_c;
    return SUCCESS;
}
typedef struct { uint32_t now, min, max; uint8_t locked, sleep, pad[2]; uint32_t reserved[4]; } clk_info;
API int amdsmi_get_clock_info(void *h, uint32_t type, clk_info *out) {
    (void)type;
    DEVICE(h)
    memset(out, 0, sizeof *out);
    out->now = out->max = (uint32_t)g->high_mhz;
    out->min = (uint32_t)g->clock_min_mhz;
    return SUCCESS;
}
API int amdsmi_get_gpu_perf_level(void *h, uint32_t *out) { DEVICE(h) *out = (uint32_t)g->perf_level; return SUCCESS; }
API int amdsmi_set_gpu_perf_level(void *h, uint32_t level) {
    DEVICE(h)
    if (!g->may_set) return NO_PERM;
    g->perf_level = level;
    g->high_mhz = g->clock_max_mhz;
    return SUCCESS;
}
API int amdsmi_set_gpu_perf_determinism_mode(void *h, uint64_t mhz) {
    DEVICE(h)
    if (!g->may_set) return NO_PERM;
    g->perf_level = 6; /* AMDSMI_DEV_PERF_LEVEL_DETERMINISM */
    g->high_mhz = (int64_t)mhz;
    return SUCCESS;
}
typedef struct __attribute__((packed)) {
    char name[256]; uint32_t pid; char pad[4]; uint64_t mem; char usage[64], memory[64], container[256]; uint32_t occupancy, evicted; uint32_t reserved[10];
} proc_info;
API int amdsmi_get_gpu_process_list(void *h, uint32_t *n, char *out) {
    DEVICE(h)
    *n = g->pid ? 1 : 0;
    if (g->pid) {
        memset(out, 0, 260);
        strcpy(out, "python");
        *(uint32_t *)(out + 256) = (uint32_t)g->pid;
    }
    return SUCCESS;
}
