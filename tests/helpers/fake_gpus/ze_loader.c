/* A fake libze_loader.so.1 for Intel's own Python bindings (pyzes 0.1.3, whose ctypes structures give the layouts).
 * Modelled: energy counters in uJ with a time stamp in us of the card and of its tiles, sustained power limits in mW,
 * a frequency range that -1 resets, engine activity, temperature, throttle reasons. Its soname is the absolute path
 * that pyzes loads, so that glibc takes this library, loaded before, for it. */
#include "common.h"

enum { SUCCESS = 0, LOST = 0x70000001, NO_RIGHT = 0x70010000, UNINITIALIZED = 0x78000001, UNSUPPORTED = 0x78000003, INVALID = 0x78000004 };
#define MAX_TILES 4
static char handles[MAX_GPUS], domains[MAX_GPUS * (1 + MAX_TILES)], others[MAX_GPUS], driver;

#define DEVICE(base, h, each) \
    int64_t at = (char *)(h) - (base), i = at / (each); \
    if (!ready() || i < 0 || i >= state->gpus) return INVALID; \
    if (code_of(__func__, i)) return (int)code_of(__func__, i); \
    gpu *g = &state->gpu[i]; \
    (void)g;

API int zesInit(uint32_t flags) { (void)flags; return ready() ? (int)state->init_code : UNINITIALIZED; }
API int zesDriverGet(uint32_t *n, void **out) {
    if (out && *n) out[0] = &driver;
    *n = 1;
    return SUCCESS;
}
API int zesDeviceGet(void *d, uint32_t *n, void **out) {
    (void)d;
    if (out)
        for (uint32_t i = 0; i < *n; i++) out[i] = &handles[i];
    *n = (uint32_t)count();
    return SUCCESS;
}
typedef struct {
    int32_t stype; void *next; int32_t type; uint32_t vendor, device, flags, subdevice, clock; uint64_t alloc;
    uint32_t a, b, c, d, e, f, g; uint64_t timer; uint32_t bits, kernel_bits; uint8_t uuid[16]; char name[256];
} core_properties;
typedef struct { int32_t stype; void *next; core_properties core; uint32_t subdevices; char texts[6][64]; } device_properties;
API int zesDeviceGetProperties(void *h, device_properties *out) {
    DEVICE(handles, h, 1)
    out->core.type = 1;
    out->core.vendor = 0x8086;
    out->core.flags = g->integrated ? 1 : 0;
    memset(out->core.uuid, 0, 16);
    out->core.uuid[15] = (uint8_t)(i + 1);
    strcpy(out->core.name, g->name);
    out->subdevices = (uint32_t)g->tiles;
    return SUCCESS;
}
typedef struct { int32_t stype; void *next; uint8_t on_tile; uint32_t tile; uint8_t can_control, threshold; int32_t def, min, max; } power_properties;
API int zesDeviceEnumPowerDomains(void *h, uint32_t *n, void **out) {
    DEVICE(handles, h, 1)
    uint32_t found = 0;
    for (int64_t k = g->card_counter ? 0 : 1; k <= g->tiles; k++, found++)
        if (out && found < *n) out[found] = &domains[i * (1 + MAX_TILES) + k];
    *n = found;
    return SUCCESS;
}
API int zesPowerGetProperties(void *h, power_properties *out) {
    DEVICE(domains, h, 1 + MAX_TILES)
    int64_t k = at % (1 + MAX_TILES);
    out->on_tile = k > 0;
    out->tile = k ? (uint32_t)(k - 1) : 0;
    out->can_control = k == 0;
    out->def = (int32_t)g->limit_default_mw;
    out->min = (int32_t)g->limit_min_mw;
    out->max = (int32_t)g->limit_max_mw;
    return SUCCESS;
}
API int zesPowerGetEnergyCounter(void *h, uint64_t *out) {
    DEVICE(domains, h, 1 + MAX_TILES)
    int64_t k = at % (1 + MAX_TILES);
    double device_s, j = counter_j(g, &device_s);
    if (k) j = 0.8 * j / (double)(g->tiles); /* tiles are parts of the card: memory and its controller are not */
    out[0] = (uint64_t)(1e6 * j);
    out[1] = (uint64_t)(1e6 * device_s);
    return SUCCESS;
}
typedef struct { int32_t stype; void *next; int32_t level, source, unit; uint8_t state_locked, enabled, interval_locked; int32_t interval; uint8_t locked; int32_t limit; } limit_desc;
API int zesPowerGetLimitsExt(void *h, uint32_t *n, limit_desc *out) {
    DEVICE(domains, h, 1 + MAX_TILES)
    for (uint32_t k = 0; out && k < *n && k < 2; k++) {
        memset(&out[k], 0, sizeof *out);
        out[k].level = k ? 3 : 1; /* peak, sustained */
        out[k].unit = 2;
        out[k].enabled = 1;
        out[k].limit = k ? 2 * (int32_t)g->limit_max_mw : (int32_t)g->limit_mw;
    }
    *n = 2; /* sustained and peak */
    return SUCCESS;
}
API int zesPowerSetLimitsExt(void *h, uint32_t *n, limit_desc *in) {
    DEVICE(domains, h, 1 + MAX_TILES)
    if (!g->may_set) return NO_RIGHT;
    for (uint32_t k = 0; k < *n; k++)
        if (in[k].level == 1) {
            if (in[k].limit < g->limit_min_mw || in[k].limit > g->limit_max_mw) return INVALID;
            g->limit_mw = in[k].limit;
            g->sets++;
        }
    return SUCCESS;
}
#define ONE_EACH(name) \
    API int name(void *h, uint32_t *n, void **out) { \
        DEVICE(handles, h, 1) \
        if (out && *n) out[0] = &others[i]; \
        *n = 1; \
        return SUCCESS; \
    }
ONE_EACH(zesDeviceEnumFrequencyDomains)
ONE_EACH(zesDeviceEnumTemperatureSensors)
ONE_EACH(zesDeviceEnumEngineGroups)
typedef struct { int32_t stype; void *next; int32_t type; uint8_t on_tile; uint32_t tile; uint8_t can_control, event; double min, max; } freq_properties;
API int zesFrequencyGetProperties(void *h, freq_properties *out) {
    DEVICE(others, h, 1)
    out->type = 0;
    out->on_tile = 0;
    out->can_control = 1;
    out->min = (double)g->clock_min_mhz;
    out->max = (double)g->clock_max_mhz;
    return SUCCESS;
}
API int zesFrequencyGetRange(void *h, double *out) {
    DEVICE(others, h, 1)
    out[0] = (double)g->low_mhz;
    out[1] = (double)g->high_mhz;
    return SUCCESS;
}
API int zesFrequencySetRange(void *h, const double *in) {
    DEVICE(others, h, 1)
    if (!g->may_set) return NO_RIGHT;
    g->low_mhz = in[0] < 0 ? g->clock_min_mhz : (int64_t)in[0];
    g->high_mhz = in[1] < 0 ? g->clock_max_mhz : (int64_t)in[1];
    return SUCCESS;
}
API int zesFrequencyGetAvailableClocks(void *h, uint32_t *n, double *out) {
    DEVICE(others, h, 1)
    uint32_t found = 0;
    for (int64_t mhz = g->clock_min_mhz; mhz <= g->clock_max_mhz; mhz += 50, found++)
        if (out && found < *n) out[found] = (double)mhz;
    *n = found;
    return SUCCESS;
}
typedef struct { int32_t stype; void *next; double volt, request, tdp, efficient, actual; uint32_t reasons; } freq_state;
API int zesFrequencyGetState(void *h, freq_state *out) {
    DEVICE(others, h, 1)
    out->request = out->actual = (double)g->high_mhz;
    out->reasons = (uint32_t)g->throttle;
    return SUCCESS;
}
typedef struct { int32_t stype; void *next; int32_t type; uint8_t on_tile; uint32_t tile; double max; uint8_t a, b, c; } temp_properties;
API int zesTemperatureGetProperties(void *h, temp_properties *out) { DEVICE(others, h, 1) out->type = 0; return SUCCESS; }
API int zesTemperatureGetState(void *h, double *out) { DEVICE(others, h, 1) *out = (double)g->temperature_c; return SUCCESS; }
typedef struct { int32_t stype; void *next; uint32_t type; uint8_t on_tile; uint32_t tile; } engine_properties;
API int zesEngineGetProperties(void *h, engine_properties *out) { DEVICE(others, h, 1) out->type = 1; return SUCCESS; }
API int zesEngineGetActivity(void *h, uint64_t *out) {
    DEVICE(others, h, 1)
    uint64_t us = (uint64_t)(1e6 * now_s());
    out[0] = us / 100 * (uint64_t)g->utilisation;
    out[1] = us;
    return SUCCESS;
}
typedef struct { int32_t stype; void *next; uint32_t pid; uint64_t mem, shared; uint32_t engines; } process_state;
API int zesDeviceProcessesGetState(void *h, uint32_t *n, process_state *out) {
    DEVICE(handles, h, 1)
    if (out && *n && g->pid) out[0].pid = (uint32_t)g->pid;
    *n = g->pid ? 1 : 0;
    return SUCCESS;
}
