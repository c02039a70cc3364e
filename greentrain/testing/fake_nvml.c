/* A fake libnvidia-ml.so.1 whose GPUs draw a power that is known in closed form.
 *
 * The state of the fake driver is the struct `config` in a file that every process maps shared and writable, as
 * the processes of a node share one real driver: what one sets, all see. The file is named by the environment
 * variable FAKE_NVML_CONFIG, or by fake_nvml_configure() inside a process. fake_nvml.py writes it and mirrors its
 * layout; fake_nvml_config_size() lets it check that. Time is CLOCK_MONOTONIC, which is Python's time.monotonic().
 *
 * Behaviour modelled, with sources:
 *  - energy counter in mJ that advances in ticks of about 100 ms (ML.ENERGY blog, thermally stable profiling)
 *  - power usage averaged over 1 s on Ampere except GA100 and newer, instantaneous on others (NVML API reference)
 *  - a sensor that sees only part of the time, 25 ms of each 100 ms (arXiv 2312.02741)
 *  - no power or energy for MIG devices (NVML API reference, MIG user guide)
 *  - a power limit that the board keeps, for GPUs that were told to obey it, and a power never above it
 *  - locked clocks that nothing shows but, on a busy GPU, an event reason (nvml.h has no getter for them)
 * Symbols and structs follow nvml.h as seen by nvidia-ml-py 13.615. To add a function: a name in FUNCTIONS and its body.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAGIC 0x47544e564d4c0001LL
#define MAX_GPUS 16
#define MAX_MIGS 8
#define MAX_WAVES 4
#define MAX_SEGMENTS 64
#define MAX_JUMPS 8
#define MAX_FUNCTIONS 96
#define MAX_PIDS 8
#define MAX_LIMITS 256

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, UNKNOWN = 999 };

/* Names that behaviours and call counts are kept by. The NVML_FI ones are the fields of nvmlDeviceGetFieldValues. */
#define FUNCTIONS(X) \
    X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID) X(nvmlDeviceGetHandleByPciBusId_v2) \
    X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetPciInfo_v3) \
    X(nvmlDeviceGetArchitecture) X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetC2cModeInfoV) \
    X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetFieldValues) \
    X(NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION) X(NVML_FI_DEV_POWER_AVERAGE) X(NVML_FI_DEV_POWER_INSTANT) \
    X(nvmlDeviceGetPowerManagementMode) X(nvmlDeviceGetPowerManagementLimit) \
    X(nvmlDeviceGetPowerManagementLimitConstraints) X(nvmlDeviceGetPowerManagementDefaultLimit) \
    X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceSetPowerManagementLimit) \
    X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceSetPersistenceMode) X(nvmlDeviceGetComputeMode) \
    X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetTemperature) X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetGraphicsRunningProcesses) \
    X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetSupportedMemoryClocks) \
    X(nvmlDeviceGetSupportedGraphicsClocks) X(nvmlDeviceGetApplicationsClock) X(nvmlDeviceGetDefaultApplicationsClock) \
    X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceSetGpuLockedClocks) X(nvmlDeviceResetGpuLockedClocks) \
    X(nvmlDeviceSetMemoryLockedClocks) X(nvmlDeviceResetMemoryLockedClocks) \
    X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex) \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) X(nvmlDeviceIsMigDeviceHandle) X(nvmlDeviceGetGpuInstanceId) \
    X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetAttributes_v2) X(nvmlDeviceGetProcessUtilization) \
    X(nvmlDeviceWorkloadPowerProfileGetProfilesInfo) X(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles) \
    X(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles) X(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles)
#define AS_ENUM(name) F_##name,
#define AS_STRING(name) #name,
enum { FUNCTIONS(AS_ENUM) FUNCTION_COUNT };
static const char *const function_names[] = {FUNCTIONS(AS_STRING)};
_Static_assert(FUNCTION_COUNT <= MAX_FUNCTIONS, "raise MAX_FUNCTIONS here and in fake_nvml.py");

/* ---- shared state; every member is 8 bytes wide or an array of such ---------------------------------------- */

typedef struct { double low_w, high_w, period_s, duty, phase_s; } wave;
typedef struct { double start_s, base_j; int64_t waves; wave wave[MAX_WAVES]; } segment;
typedef struct { double at_s, delta_j; } jump;
typedef struct { double at_s, base_j, limit_w; } limit_change;
typedef struct { int64_t code; double from_s, until_s, sleep_s, busy_s; } behaviour;
typedef struct {
    char name[96], uuid[96], bus_id[32], mig_uuid[MAX_MIGS][96];
    int64_t migs, mig_supported, architecture, compute_major, compute_minor, c2c;
    double tick_s, tick_phase_s, refresh_s, averaging_s, window_s, counter_start_j, lost_at_s;
    int64_t limit_min_mw, limit_max_mw, limit_default_mw, limit_mw, limit_sets, may_set, persistence;
    int64_t limit_enforced_mw, limit_step_mw, obeys_limit, clock_sets, clock_reasons, app_clock_mhz, app_clock_default_mhz;
    int64_t gpu_clock_min_mhz, gpu_clock_max_mhz, memory_clock_min_mhz, memory_clock_max_mhz;
    int64_t utilisation, memory_utilisation, temperature_c, memory_total, memory_used, pids, pid[MAX_PIDS];
    int64_t sm_util[MAX_PIDS], mig_sms[MAX_MIGS], profiles, profiles_requested, profile_sets;
    int64_t segments;
    segment segment[MAX_SEGMENTS];
    int64_t jumps;
    jump jump[MAX_JUMPS];
    int64_t limits;
    limit_change limit[MAX_LIMITS];
    behaviour behaviour[MAX_FUNCTIONS];
    int64_t calls[MAX_FUNCTIONS];
} gpu;
typedef struct { int64_t magic, gpus, init_code; char driver_version[80]; gpu gpu[MAX_GPUS]; } config;

static config *state;
static int depth;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { int64_t tick; double sum_j; int started; } sensed[MAX_GPUS];
static char handles[MAX_GPUS * (1 + MAX_MIGS)]; /* only the addresses matter: device * (1 + MAX_MIGS) + 1 + slice */

API int64_t fake_nvml_config_size(void) { return (int64_t)sizeof(config); }
API const char *fake_nvml_function_name(int i) { return i >= 0 && i < FUNCTION_COUNT ? function_names[i] : NULL; }
API int fake_nvml_init_depth(void) { return depth; }

static int map_config(const char *path) {
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return DRIVER_NOT_LOADED;
    struct stat info;
    void *map = MAP_FAILED;
    if (!fstat(fd, &info) && info.st_size == (off_t)sizeof(config))
        map = mmap(NULL, sizeof(config), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return DRIVER_NOT_LOADED;
    state = map;
    memset(sensed, 0, sizeof sensed);
    return state->magic == MAGIC ? SUCCESS : DRIVER_NOT_LOADED;
}

/* Uses the state at `path` from now on in this process, NULL for none: then there is no driver. */
API int fake_nvml_configure(const char *path) {
    pthread_mutex_lock(&lock);
    if (state) munmap(state, sizeof(config));
    state = NULL;
    depth = 0;
    int result = path ? map_config(path) : SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- power and energy in closed form ------------------------------------------------------------------------ */

static double now_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double on_s(const wave *w, double t) {
    double whole = floor(t / w->period_s), on = w->duty * w->period_s;
    return whole * on + fmin(t - whole * w->period_s, on);
}

static const segment *segment_at(const gpu *g, double t) {
    int64_t i = g->segments - 1;
    __sync_synchronize();
    while (i > 0 && g->segment[i].start_s > t) i--;
    return &g->segment[i];
}

static double wave_j(const wave *w, double low_w, double high_w, double u) {
    double sum = low_w * u;
    if (w->period_s > 0) sum += (high_w - low_w) * (on_s(w, u + w->phase_s) - on_s(w, w->phase_s));
    return sum;
}

/* Energy from the epoch to t if the one wave of each segment had always been cut at a limit. */
static double cut_j(const gpu *g, double limit_w, double t) {
    double sum = 0;
    for (int i = 0; i < g->segments && g->segment[i].start_s < t; i++) {
        const wave *w = &g->segment[i].wave[0];
        double end = i + 1 < g->segments ? fmin(t, g->segment[i + 1].start_s) : t;
        sum += wave_j(w, fmin(w->low_w, limit_w), fmin(w->high_w, limit_w), end - g->segment[i].start_s);
    }
    return sum;
}

static const limit_change *limit_at(const gpu *g, double t) {
    int64_t i = g->limits - 1;
    __sync_synchronize();
    while (i > 0 && g->limit[i].at_s > t) i--;
    return &g->limit[i];
}

static double energy_j(const gpu *g, double t) {
    if (g->obeys_limit) {
        const limit_change *c = limit_at(g, t);
        return c->base_j + cut_j(g, c->limit_w, t) - cut_j(g, c->limit_w, c->at_s);
    }
    const segment *s = segment_at(g, t);
    double u = t - s->start_s, sum = s->base_j;
    for (int i = 0; i < s->waves; i++) {
        sum += wave_j(&s->wave[i], s->wave[i].low_w, s->wave[i].high_w, u);
    }
    return sum;
}

API double fake_nvml_energy_j(const gpu *g, double t) { return energy_j(g, t); }

static double power_w(const gpu *g, double t) {
    const segment *s = segment_at(g, t);
    double sum = 0;
    for (int i = 0; i < s->waves; i++) {
        const wave *w = &s->wave[i];
        double u = t - s->start_s + w->phase_s;
        int on = w->period_s > 0 && u - floor(u / w->period_s) * w->period_s < w->duty * w->period_s;
        sum += on ? w->high_w : w->low_w;
    }
    return g->obeys_limit ? fmin(sum, limit_at(g, t)->limit_w) : sum;
}

static double tick_time(const gpu *g, int64_t tick) { return (double)tick * g->tick_s + g->tick_phase_s; }
static int64_t last_tick(const gpu *g, double t) { return (int64_t)floor((t - g->tick_phase_s) / g->tick_s); }
static double mean_w(const gpu *g, double t, double over_s) { return (energy_j(g, t) - energy_j(g, t - over_s)) / over_s; }

/* What the sensor believes was used from the epoch to a tick: all of it, or its window's mean for the whole tick. */
static double sensed_j(const gpu *g, int64_t tick) {
    if (g->window_s <= 0) return energy_j(g, tick_time(g, tick));
    int i = (int)(g - state->gpu);
    pthread_mutex_lock(&lock);
    if (!sensed[i].started || sensed[i].tick > tick) {
        sensed[i].started = 1;
        sensed[i].tick = last_tick(g, g->segment[0].start_s);
        sensed[i].sum_j = 0;
    }
    while (sensed[i].tick < tick) sensed[i].sum_j += g->tick_s * mean_w(g, tick_time(g, ++sensed[i].tick), g->window_s);
    double sum = sensed[i].sum_j;
    pthread_mutex_unlock(&lock);
    return sum;
}

static unsigned long long counter_mj(const gpu *g, double t) {
    int64_t tick = last_tick(g, t);
    double sum = g->counter_start_j + sensed_j(g, tick);
    for (int i = 0; i < g->jumps; i++)
        if (g->jump[i].at_s <= tick_time(g, tick)) sum += g->jump[i].delta_j;
    return sum > 0 ? (unsigned long long)(sum * 1e3) : 0;
}

static unsigned instant_mw(const gpu *g, double t) {
    if (g->window_s > 0) return (unsigned)lround(1e3 * mean_w(g, tick_time(g, last_tick(g, t)), g->window_s));
    return (unsigned)lround(1e3 * power_w(g, floor(t / g->refresh_s) * g->refresh_s));
}

static unsigned average_mw(const gpu *g, double t) {
    if (g->averaging_s <= 0) return instant_mw(g, t);
    if (g->window_s > 0) {
        int64_t tick = last_tick(g, t), ticks = (int64_t)fmax(1, lround(g->averaging_s / g->tick_s));
        double sum = 0;
        for (int64_t k = tick - ticks + 1; k <= tick; k++) sum += mean_w(g, tick_time(g, k), g->window_s);
        return (unsigned)lround(1e3 * sum / (double)ticks);
    }
    return (unsigned)lround(1e3 * mean_w(g, floor(t / g->refresh_s) * g->refresh_s, g->averaging_s));
}

/* ---- the door every device function passes ------------------------------------------------------------------ */

static int behave(gpu *g, int function) {
    behaviour *b = &g->behaviour[function];
    __atomic_fetch_add(&g->calls[function], 1, __ATOMIC_RELAXED);
    if (b->sleep_s > 0) {
        struct timespec t = {(time_t)b->sleep_s, (long)(1e9 * (b->sleep_s - floor(b->sleep_s)))};
        nanosleep(&t, NULL);
    }
    if (b->busy_s > 0)
        for (double end = now_s(CLOCK_THREAD_CPUTIME_ID) + b->busy_s; now_s(CLOCK_THREAD_CPUTIME_ID) < end;) {}
    double t = now_s(CLOCK_MONOTONIC);
    if (t >= g->lost_at_s) return GPU_IS_LOST;
    return b->code && t >= b->from_s && t < b->until_s ? (int)b->code : SUCCESS;
}

static int enter(const char *device, int function, int mig_ok, gpu **g, int *slice) {
    if (!state || !depth) return UNINITIALIZED;
    long offset = device ? device - handles : -1;
    if (offset < 0 || offset / (1 + MAX_MIGS) >= state->gpus) return INVALID_ARGUMENT;
    *g = &state->gpu[offset / (1 + MAX_MIGS)];
    *slice = (int)(offset % (1 + MAX_MIGS)) - 1;
    if (*slice >= (*g)->migs) return INVALID_ARGUMENT;
    int code = behave(*g, function);
    return code ? code : *slice >= 0 && !mig_ok ? NOT_SUPPORTED : SUCCESS;
}

#define ENTER(name, mig_ok) \
    gpu *g; int slice; int code = enter(device, F_##name, mig_ok, &g, &slice); \
    if (code) return code; \
    (void)slice
#define GETTER(name, type, expression) \
    API int name(const char *device, type *out) { ENTER(name, 0); *out = (type)(expression); return SUCCESS; }

static int give_text(const char *text, char *out, unsigned length) {
    if (strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

static int give_handle(int device, int slice, int function, const char **out) {
    if (!state || !depth) return UNINITIALIZED;
    if (device < 0 || device >= state->gpus) return function == F_nvmlDeviceGetHandleByIndex_v2 ? INVALID_ARGUMENT : NOT_FOUND;
    *out = &handles[device * (1 + MAX_MIGS) + 1 + slice];
    return behave(&state->gpu[device], function);
}

/* ---- library and system ------------------------------------------------------------------------------------- */

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int code = state ? SUCCESS : map_config(getenv("FAKE_NVML_CONFIG"));
    if (!code) code = (int)state->init_code;
    if (!code) depth++;
    pthread_mutex_unlock(&lock);
    return code;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { return depth > 0 ? (depth--, SUCCESS) : UNINITIALIZED; }
API const char *nvmlErrorString(int code) { return code ? "fake NVML error" : "Success"; }
API int nvmlSystemGetDriverVersion(char *out, unsigned n) { return depth ? give_text(state->driver_version, out, n) : UNINITIALIZED; }
API int nvmlSystemGetNVMLVersion(char *out, unsigned n) { return give_text("13.580.65", out, n); }
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return SUCCESS; }
API int nvmlSystemGetCudaDriverVersion(int *out) { *out = 13000; return SUCCESS; }
API int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned n) { (void)pid; return give_text("python", out, n); }
API int nvmlDeviceGetCount_v2(unsigned *out) { if (!depth) return UNINITIALIZED; *out = (unsigned)state->gpus; return SUCCESS; }
API int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

/* ---- handles and identity ----------------------------------------------------------------------------------- */

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, const char **out) {
    return give_handle((int)index, -1, F_nvmlDeviceGetHandleByIndex_v2, out);
}
API int nvmlDeviceGetHandleByIndex(unsigned index, const char **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
API int nvmlDeviceGetHandleByUUID(const char *uuid, const char **out) {
    if (!depth) return UNINITIALIZED;
    for (int i = 0; i < state->gpus; i++) {
        if (!strcmp(uuid, state->gpu[i].uuid)) return give_handle(i, -1, F_nvmlDeviceGetHandleByUUID, out);
        for (int m = 0; m < state->gpu[i].migs; m++)
            if (!strcmp(uuid, state->gpu[i].mig_uuid[m])) return give_handle(i, m, F_nvmlDeviceGetHandleByUUID, out);
    }
    return NOT_FOUND;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, const char **out) {
    if (!depth) return UNINITIALIZED;
    for (int i = 0; i < state->gpus; i++)
        if (!strcasecmp(bus_id, state->gpu[i].bus_id)) return give_handle(i, -1, F_nvmlDeviceGetHandleByPciBusId_v2, out);
    return NOT_FOUND;
}
API int nvmlDeviceGetName(const char *device, char *out, unsigned n) {
    ENTER(nvmlDeviceGetName, 1);
    return give_text(g->name, out, n);
}
API int nvmlDeviceGetUUID(const char *device, char *out, unsigned n) {
    ENTER(nvmlDeviceGetUUID, 1);
    return give_text(slice < 0 ? g->uuid : g->mig_uuid[slice], out, n);
}
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem_id; char bus_id[32]; } pci_info;
API int nvmlDeviceGetPciInfo_v3(const char *device, pci_info *out) {
    ENTER(nvmlDeviceGetPciInfo_v3, 0);
    memset(out, 0, sizeof *out);
    sscanf(g->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    strcpy(out->bus_id, g->bus_id);
    snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return SUCCESS;
}
GETTER(nvmlDeviceGetIndex, unsigned, g - state->gpu)
GETTER(nvmlDeviceGetMinorNumber, unsigned, g - state->gpu)
GETTER(nvmlDeviceGetArchitecture, unsigned, g->architecture)
API int nvmlDeviceGetCudaComputeCapability(const char *device, int *major, int *minor) {
    ENTER(nvmlDeviceGetCudaComputeCapability, 1);
    *major = (int)g->compute_major;
    *minor = (int)g->compute_minor;
    return SUCCESS;
}
API int nvmlDeviceGetC2cModeInfoV(const char *device, unsigned *enabled) {
    ENTER(nvmlDeviceGetC2cModeInfoV, 0);
    if (!g->c2c) return NOT_SUPPORTED;
    *enabled = 1;
    return SUCCESS;
}

/* ---- energy and power --------------------------------------------------------------------------------------- */

GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, counter_mj(g, now_s(CLOCK_MONOTONIC)))
GETTER(nvmlDeviceGetPowerUsage, unsigned, average_mw(g, now_s(CLOCK_MONOTONIC)))

typedef union { double d; unsigned ui; unsigned long long ull; } value;
typedef struct { unsigned field, scope; int64_t timestamp_us, latency_us; unsigned type; int code; value value; } field_value;

static int read_field(gpu *g, field_value *v) {
    double t = now_s(CLOCK_MONOTONIC);
    int code;
    if (v->scope > (g->c2c ? 1U : 0U)) return NOT_SUPPORTED;
    v->type = 1;
    switch (v->field) {
    case 83:
        if ((code = behave(g, F_NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION))) return code;
        v->type = 3;
        v->value.ull = counter_mj(g, t);
        return SUCCESS;
    case 185:
        if ((code = behave(g, F_NVML_FI_DEV_POWER_AVERAGE))) return code;
        v->value.ui = average_mw(g, t);
        return g->averaging_s > 0 ? SUCCESS : NOT_SUPPORTED;
    case 186:
        if ((code = behave(g, F_NVML_FI_DEV_POWER_INSTANT))) return code;
        v->value.ui = instant_mw(g, t) + (v->scope ? 150000 : 0); /* a module's CPU and memory: 150 W */
        return SUCCESS;
    default:
        return NOT_SUPPORTED;
    }
}
API int nvmlDeviceGetFieldValues(const char *device, int count, field_value *values) {
    ENTER(nvmlDeviceGetFieldValues, 0);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    for (int i = 0; i < count; i++) {
        values[i].timestamp_us = (int64_t)wall.tv_sec * 1000000 + wall.tv_nsec / 1000;
        values[i].code = read_field(g, &values[i]);
    }
    return SUCCESS;
}

GETTER(nvmlDeviceGetPowerManagementMode, unsigned, 1)
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, g->limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, g->limit_default_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned,
       g->limit_enforced_mw && g->limit_enforced_mw < g->limit_mw ? g->limit_enforced_mw : g->limit_mw)
API int nvmlDeviceGetPowerManagementLimitConstraints(const char *device, unsigned *low, unsigned *high) {
    ENTER(nvmlDeviceGetPowerManagementLimitConstraints, 0);
    *low = (unsigned)g->limit_min_mw;
    *high = (unsigned)g->limit_max_mw;
    return SUCCESS;
}
static int obey(gpu *g) {
    if (g->limits >= MAX_LIMITS) return UNKNOWN;
    double t = now_s(CLOCK_MONOTONIC);
    g->limit[g->limits] = (limit_change){t, energy_j(g, t), 1e-3 * (double)g->limit_mw};
    __sync_synchronize();
    g->limits++;
    return SUCCESS;
}
API int nvmlDeviceSetPowerManagementLimit(const char *device, unsigned limit_mw) {
    ENTER(nvmlDeviceSetPowerManagementLimit, 0);
    if (!g->may_set) return NO_PERMISSION;
    if (limit_mw < g->limit_min_mw || limit_mw > g->limit_max_mw) return INVALID_ARGUMENT;
    g->limit_mw = g->limit_step_mw ? limit_mw / g->limit_step_mw * g->limit_step_mw : limit_mw;
    __atomic_fetch_add(&g->limit_sets, 1, __ATOMIC_RELAXED);
    return g->obeys_limit ? obey(g) : SUCCESS;
}

/* ---- what trackers like to show ----------------------------------------------------------------------------- */

GETTER(nvmlDeviceGetPersistenceMode, unsigned, g->persistence)
API int nvmlDeviceSetPersistenceMode(const char *device, unsigned mode) {
    ENTER(nvmlDeviceSetPersistenceMode, 0);
    if (!g->may_set) return NO_PERMISSION;
    g->persistence = mode;
    return SUCCESS;
}
GETTER(nvmlDeviceGetComputeMode, unsigned, 0)
GETTER(nvmlDeviceGetPerformanceState, unsigned, 0)
typedef struct { unsigned gpu, memory; } utilisation;
API int nvmlDeviceGetUtilizationRates(const char *device, utilisation *out) {
    ENTER(nvmlDeviceGetUtilizationRates, 0);
    out->gpu = (unsigned)g->utilisation;
    out->memory = (unsigned)g->memory_utilisation;
    return SUCCESS;
}
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
API int nvmlDeviceGetMemoryInfo(const char *device, memory *out) {
    ENTER(nvmlDeviceGetMemoryInfo, 1);
    *out = (memory){(unsigned long long)g->memory_total, (unsigned long long)(g->memory_total - g->memory_used),
                    (unsigned long long)g->memory_used};
    return SUCCESS;
}
API int nvmlDeviceGetMemoryInfo_v2(const char *device, memory_v2 *out) {
    memory m;
    int code = nvmlDeviceGetMemoryInfo(device, &m);
    if (!code) *out = (memory_v2){out->version, m.total, 0, m.free, m.used};
    return code;
}
API int nvmlDeviceGetTemperature(const char *device, unsigned sensor, unsigned *out) {
    ENTER(nvmlDeviceGetTemperature, 0);
    (void)sensor;
    *out = (unsigned)g->temperature_c;
    return SUCCESS;
}
typedef struct { unsigned version, sensor; int temperature_c; } temperature;
API int nvmlDeviceGetTemperatureV(const char *device, temperature *out) {
    return nvmlDeviceGetTemperature(device, out->sensor, (unsigned *)&out->temperature_c);
}
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
static int give_processes(const int64_t *pid, int64_t pids, unsigned *count, process *out) {
    unsigned room = *count;
    *count = (unsigned)pids;
    if (!*count) return SUCCESS;
    if (room < *count || !out) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) out[i] = (process){(unsigned)pid[i], 1 << 30, 0xffffffff, 0xffffffff};
    return SUCCESS;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(const char *device, unsigned *count, process *out) {
    ENTER(nvmlDeviceGetComputeRunningProcesses, 1);
    return give_processes(g->pid, g->pids, count, out);
}
API int nvmlDeviceGetComputeRunningProcesses_v2(const char *device, unsigned *count, process *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(const char *device, unsigned *count, process *out) {
    ENTER(nvmlDeviceGetGraphicsRunningProcesses, 1);
    return give_processes(NULL, 0, count, out);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v2(const char *device, unsigned *count, process *out) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, out);
}

/* ---- clocks ------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetClockInfo(const char *device, unsigned kind, unsigned *out) {
    ENTER(nvmlDeviceGetClockInfo, 0);
    *out = (unsigned)(kind == 2 ? g->memory_clock_max_mhz : g->gpu_clock_max_mhz);
    return SUCCESS;
}
API int nvmlDeviceGetMaxClockInfo(const char *device, unsigned kind, unsigned *out) {
    ENTER(nvmlDeviceGetMaxClockInfo, 0);
    *out = kind == 2 ? 1593 : 1410;
    return SUCCESS;
}
static int give_clocks(const unsigned *clocks, unsigned n, unsigned *count, unsigned *out) {
    unsigned room = *count;
    *count = n;
    if (room < n || !out) return INSUFFICIENT_SIZE;
    memcpy(out, clocks, n * sizeof *clocks);
    return SUCCESS;
}
API int nvmlDeviceGetSupportedMemoryClocks(const char *device, unsigned *count, unsigned *out) {
    ENTER(nvmlDeviceGetSupportedMemoryClocks, 0);
    return give_clocks((const unsigned[]){1593}, 1, count, out);
}
API int nvmlDeviceGetSupportedGraphicsClocks(const char *device, unsigned memory_mhz, unsigned *count, unsigned *out) {
    ENTER(nvmlDeviceGetSupportedGraphicsClocks, 0);
    if (memory_mhz != 1593) return NOT_FOUND;
    return give_clocks((const unsigned[]){1410, 1200, 990, 780, 570, 360, 210}, 7, count, out);
}
GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, g->clock_reasons)
API int nvmlDeviceGetApplicationsClock(const char *device, unsigned kind, unsigned *out) {
    ENTER(nvmlDeviceGetApplicationsClock, 0);
    if (!g->app_clock_mhz) return NOT_SUPPORTED;
    *out = (unsigned)(kind == 2 ? 1593 : g->app_clock_mhz);
    return SUCCESS;
}
API int nvmlDeviceGetDefaultApplicationsClock(const char *device, unsigned kind, unsigned *out) {
    ENTER(nvmlDeviceGetDefaultApplicationsClock, 0);
    if (!g->app_clock_mhz) return NOT_SUPPORTED;
    *out = (unsigned)(kind == 2 ? 1593 : g->app_clock_default_mhz);
    return SUCCESS;
}
#define LOCKED_CLOCKS(set, reset, low, high, free_low, free_high) \
    API int set(const char *device, unsigned minimum, unsigned maximum) { \
        ENTER(set, 0); \
        if (!g->may_set) return NO_PERMISSION; \
        if (minimum > maximum) return INVALID_ARGUMENT; \
        g->low = minimum; g->high = maximum; \
        __atomic_fetch_add(&g->clock_sets, 1, __ATOMIC_RELAXED); \
        return SUCCESS; \
    } \
    API int reset(const char *device) { \
        ENTER(reset, 0); \
        if (!g->may_set) return NO_PERMISSION; \
        g->low = free_low; g->high = free_high; \
        return SUCCESS; \
    }
LOCKED_CLOCKS(nvmlDeviceSetGpuLockedClocks, nvmlDeviceResetGpuLockedClocks, gpu_clock_min_mhz, gpu_clock_max_mhz, 210, 1410)
LOCKED_CLOCKS(nvmlDeviceSetMemoryLockedClocks, nvmlDeviceResetMemoryLockedClocks, memory_clock_min_mhz, memory_clock_max_mhz,
              1593, 1593)

/* ---- MIG ---------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetMigMode(const char *device, unsigned *current, unsigned *pending) {
    ENTER(nvmlDeviceGetMigMode, 0);
    if (!g->mig_supported) return NOT_SUPPORTED;
    *current = *pending = g->migs > 0;
    return SUCCESS;
}
GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned, g->mig_supported ? 7 : 0)
API int nvmlDeviceGetMigDeviceHandleByIndex(const char *device, unsigned index, const char **out) {
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, 0);
    if (!g->mig_supported) return NOT_SUPPORTED;
    if (index >= g->migs) return NOT_FOUND;
    *out = device + 1 + index;
    return SUCCESS;
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const char *device, const char **out) {
    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, 1);
    if (slice < 0) return INVALID_ARGUMENT;
    *out = device - 1 - slice;
    return SUCCESS;
}
API int nvmlDeviceIsMigDeviceHandle(const char *device, unsigned *out) {
    ENTER(nvmlDeviceIsMigDeviceHandle, 1);
    *out = slice >= 0;
    return SUCCESS;
}
API int nvmlDeviceGetGpuInstanceId(const char *device, unsigned *out) {
    ENTER(nvmlDeviceGetGpuInstanceId, 1);
    if (slice < 0) return NOT_SUPPORTED;
    *out = (unsigned)slice + 1;
    return SUCCESS;
}
API int nvmlDeviceGetComputeInstanceId(const char *device, unsigned *out) {
    ENTER(nvmlDeviceGetComputeInstanceId, 1);
    if (slice < 0) return NOT_SUPPORTED;
    *out = 0;
    return SUCCESS;
}

typedef struct { unsigned sms, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory_mb; } attributes;
API int nvmlDeviceGetAttributes_v2(const char *device, attributes *out) {
    ENTER(nvmlDeviceGetAttributes_v2, 1);
    if (slice < 0 || !g->mig_sms[slice]) return NOT_SUPPORTED;
    *out = (attributes){.sms = (unsigned)g->mig_sms[slice]};
    return SUCCESS;
}

/* ---- processes that share a GPU: one sample each, at all times --------------------------------------------- */

typedef struct { unsigned pid; unsigned long long time_us; unsigned sm, memory, encoder, decoder; } process_sample;
API int nvmlDeviceGetProcessUtilization(const char *device, process_sample *out, unsigned *count, unsigned long long since_us) {
    ENTER(nvmlDeviceGetProcessUtilization, 0);
    unsigned room = *count, n = 0;
    for (int i = 0; i < g->pids; i++) {
        if (!g->sm_util[i]) continue;
        if (out && n < room) out[n] = (process_sample){(unsigned)g->pid[i], since_us + 1, (unsigned)g->sm_util[i], 0, 0, 0};
        n++;
    }
    *count = n;
    return !n ? NOT_FOUND : !out || room < n ? INSUFFICIENT_SIZE : SUCCESS;
}

/* ---- workload power profiles: a mask of what the card has, one of what is requested ------------------------- */

typedef struct { unsigned version, mask[8]; struct { unsigned version, id, priority, conflicts[8]; } profile[255]; } profiles_info;
API int nvmlDeviceWorkloadPowerProfileGetProfilesInfo(const char *device, profiles_info *out) {
    ENTER(nvmlDeviceWorkloadPowerProfileGetProfilesInfo, 0);
    if (!g->profiles) return NOT_SUPPORTED;
    out->mask[0] = (unsigned)g->profiles;
    return SUCCESS;
}
typedef struct { unsigned version, available[8], requested[8], enforced[8]; } profiles_now;
API int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(const char *device, profiles_now *out) {
    ENTER(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, 0);
    if (!g->profiles) return NOT_SUPPORTED;
    out->available[0] = (unsigned)g->profiles;
    out->requested[0] = out->enforced[0] = (unsigned)g->profiles_requested;
    return SUCCESS;
}
typedef struct { unsigned version, mask[8]; } profiles_request;
#define REQUEST_PROFILES(name, result) \
    API int name(const char *device, const profiles_request *request) { \
        ENTER(name, 0); \
        if (!g->profiles) return NOT_SUPPORTED; \
        if (!g->may_set) return NO_PERMISSION; \
        if (request->mask[0] & ~(unsigned)g->profiles) return INVALID_ARGUMENT; \
        g->profiles_requested = result; \
        g->profile_sets++; \
        return SUCCESS; \
    }
REQUEST_PROFILES(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles, g->profiles_requested | request->mask[0])
REQUEST_PROFILES(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles, g->profiles_requested & ~(int64_t)request->mask[0])
