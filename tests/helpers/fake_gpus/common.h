/* State that fake drivers of GPUs share with the test that writes it: a file that every process maps, as the processes
 * of a node share one real driver. fake_gpus.py mirrors the layout; fake_config_size() lets it check that.
 * Time is CLOCK_MONOTONIC, Python's time.monotonic(). Power is a square wave that begins each period high. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_FAULTS 32

typedef struct {
    char name[96], uuid[64], bdf[32];
    double low_w, high_w, period_s, start_s, base_j, tick_s, counter_start_j, clock_offset_s, clock_rate, counter_rate;
    int64_t limit_min_mw, limit_max_mw, limit_default_mw, limit_mw, may_set, sets;
    int64_t clock_min_mhz, clock_max_mhz, low_mhz, high_mhz, perf_level, utilisation, memory, temperature_c, pid;
    int64_t hip_id, partition, tiles, card_counter, integrated, throttle;
} gpu;
typedef struct { char name[56]; int64_t gpu, code; } fault;
typedef struct { int64_t magic, gpus, init_code, reads; gpu gpu[MAX_GPUS]; fault fault[MAX_FAULTS]; } config;

static config *state;

API int64_t fake_config_size(void) { return (int64_t)sizeof(config); }

/* Uses the state at `path` from now on in this process; NULL: there is no device. */
API int fake_configure(const char *path) {
    if (state) munmap(state, sizeof(config));
    state = NULL;
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return -1;
    void *map = mmap(NULL, sizeof(config), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return -1;
    state = map;
    return 0;
}

static bool ready(void) {
    if (!state) fake_configure(getenv("FAKE_GPUS_CONFIG"));
    return state != NULL;
}

static int64_t count(void) { return ready() ? state->gpus : 0; }

/* The code that a test wants of a function of one device, or of all (-1); 0: it works. */
static int64_t code_of(const char *name, int64_t device) {
    for (int i = 0; i < MAX_FAULTS; i++)
        if (!strcmp(state->fault[i].name, name) && (state->fault[i].gpu < 0 || state->fault[i].gpu == device))
            return state->fault[i].code;
    return 0;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double energy_at_j(const gpu *g, double t) {
    double u = t - g->start_s, j = g->base_j + g->low_w * u;
    if (g->period_s > 0) {
        double whole = floor(u / g->period_s), half = g->period_s / 2;
        j += (g->high_w - g->low_w) * (whole * half + fmin(u - whole * g->period_s, half));
    }
    return j;
}

static double power_at_w(const gpu *g, double t) {
    double u = t - g->start_s;
    return g->period_s > 0 && fmod(u, g->period_s) < g->period_s / 2 ? g->high_w : g->low_w;
}

static double tick_at_s(const gpu *g, double t) { return floor(t / g->tick_s) * g->tick_s; }

/* The counter shows the energy of the last tick, which has a time of its own on the device's clock. */
static double counter_j(const gpu *g, double *device_s) {
    double tick = tick_at_s(g, now_s());
    *device_s = g->clock_offset_s + g->clock_rate * tick;
    __sync_fetch_and_add(&state->reads, 1);
    double j = g->counter_start_j + g->counter_rate * energy_at_j(g, tick);
    return j < 0 ? 0 : j;
}
