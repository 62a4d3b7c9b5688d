/* A fake libnvidia-ml.so.1: the calls that the energy sensors use, on devices defined in a text file.
 *
 * It follows the calling conventions of nvidia-ml-py and integrates the programmed power exactly. It needs no GPU.
 * Build: cc -shared -fPIC -o libnvidia-ml.so.1 nvml_fake.c
 *
 * With -DOLD_DRIVER it lacks the calls that drivers before 530 lack.
 *
 * FAKE_NVML names the control file; build.py writes it. One entry per line:
 *     start S            zero of the devices' time on CLOCK_MONOTONIC
 *     clock PATH         instead: a file with the time as a double, set by the test
 *     init CODE          what nvmlInit returns
 *     N key words...     of device N; the keys are in `set` below
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES = 64, POINTS = 256, INSTANCES = 7, RULES = 32, WORD = 96, LINE = 16384 };
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15 };
enum { FIELD_MEMORY_TEMPERATURE = 82, FIELD_AVERAGE = 185, FIELD_INSTANT = 186, FIELD_LIMIT = 190, FIELD_ENERGY = 191 };
enum { TYPE_UNSIGNED = 1, TYPE_UNSIGNED_LONG_LONG = 3 };

/* Power over time: straight lines between points; the last value stays. Two points at one time make a step. */
struct profile {
    int points;
    double time_s[POINTS], power_w[POINTS];
};

/* A call that fails with `code`, or that takes `block_s`, from a time on. */
struct rule {
    char what[WORD];
    double from_s, block_s;
    int code;
};

struct device;

/* What a handle points to: a device, or one of its MIG instances. */
struct handle {
    struct device *of;
    int is_mig;
    char uuid[WORD];
};

struct device {
    struct handle self, mig[INSTANCES];
    char name[WORD];
    int present, major, minor, instances, c2c, total_is_module, first_cpu, last_cpu, rules, processes;
    double tick_s, period_s, seen_s, average_s, gain, offset_j, module_offset_j, lost_s, stuck_s, limit_w, module_limit_w;
    double changed_s, default_limit_w;
    unsigned long long reasons[2], corrected[2], uncorrected[2]; /* before and from changed_s on */
    int clock_mhz[2], memory_clock_mhz, highest_clock_mhz, temperature_c, memory_temperature_c;
    struct profile gpu, module;
    struct rule rule[RULES];
};

static struct device device[DEVICES];
static int count, users, init_code;
static double start_s;
static const volatile double *clock_s;

/* -- truth ---------------------------------------------------------------------------------------------------- */

static double now_s(void) {
    struct timespec t;
    if (clock_s)
        return *clock_s;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - start_s;
}

/* Exact joules from time zero to `until_s`; a profile begins at zero. */
static double integral_j(const struct profile *p, double until_s) {
    double sum = 0;
    int i;
    if (p->points == 0)
        return 0;
    if (until_s <= 0) /* Before time zero, power is that at time zero. */
        return until_s * p->power_w[0];
    for (i = 0; i + 1 < p->points; i++) {
        double a = p->time_s[i], b = p->time_s[i + 1], wide = b - a, end;
        if (until_s <= a)
            return sum;
        if (wide <= 0)
            continue;
        end = until_s < b ? until_s : b;
        sum += (end - a) * (p->power_w[i] + 0.5 * (p->power_w[i + 1] - p->power_w[i]) * (end - a) / wide);
    }
    if (until_s > p->time_s[i])
        sum += (until_s - p->time_s[i]) * p->power_w[i];
    return sum;
}

static double mean_w(const struct profile *p, double end_s, double wide_s) {
    return (integral_j(p, end_s) - integral_j(p, end_s - wide_s)) / wide_s;
}

/* The last moment at which a sensor with this period made a reading. Half a nanosecond guards 0.3 / 0.1 < 3. */
static double ticked_s(double time_s, double period_s) {
    return floor((time_s + 5e-10) / period_s) * period_s;
}

static double gauge_w(const struct device *d, const struct profile *p, double wide_s) {
    return d->gain * mean_w(p, ticked_s(now_s(), d->period_s), wide_s);
}

static unsigned long long counter_mj(const struct device *d, const struct profile *p) {
    double time_s = now_s();
    if (time_s > d->stuck_s)
        time_s = d->stuck_s;
    return (unsigned long long)(1e3 * ((p == &d->module ? d->module_offset_j : d->offset_j) + d->gain * integral_j(p, ticked_s(time_s, d->tick_s))) + 1e-6);
}

/* -- the control file ----------------------------------------------------------------------------------------- */

static void read_profile(struct profile *p, char *words) {
    char *word, *rest = words;
    while ((word = strtok_r(rest, " \n", &rest)) && p->points < POINTS)
        if (sscanf(word, "%lf:%lf", &p->time_s[p->points], &p->power_w[p->points]) == 2)
            p->points++;
}

static void read_instances(struct device *d, char *words) {
    char *word, *rest = words;
    while ((word = strtok_r(rest, " \n", &rest)) && d->instances < INSTANCES) {
        struct handle *mig = &d->mig[d->instances++];
        mig->of = d;
        mig->is_mig = 1;
        snprintf(mig->uuid, WORD, "%s", word);
    }
}

static void read_rule(struct device *d, const char *key, const char *words) {
    struct rule *r = &d->rule[d->rules];
    if (d->rules == RULES)
        return;
    memset(r, 0, sizeof *r);
    if (!strcmp(key, "error") ? sscanf(words, "%95s %d %lf", r->what, &r->code, &r->from_s) >= 2
                              : sscanf(words, "%95s %lf %lf", r->what, &r->block_s, &r->from_s) >= 2)
        d->rules++;
}

static void set(struct device *d, const char *key, char *words) {
    words[strcspn(words, "\n")] = 0;
    if (!strcmp(key, "uuid")) snprintf(d->self.uuid, WORD, "%s", words);
    else if (!strcmp(key, "name")) snprintf(d->name, WORD, "%s", words);
    else if (!strcmp(key, "capability")) sscanf(words, "%d %d", &d->major, &d->minor);
    else if (!strcmp(key, "power")) read_profile(&d->gpu, words);
    else if (!strcmp(key, "module_power")) read_profile(&d->module, words);
    else if (!strcmp(key, "total_is_module")) d->total_is_module = atoi(words);
    else if (!strcmp(key, "tick")) d->tick_s = atof(words);
    else if (!strcmp(key, "sensor")) sscanf(words, "%lf %lf %lf", &d->period_s, &d->seen_s, &d->average_s);
    else if (!strcmp(key, "gain")) d->gain = atof(words);
    else if (!strcmp(key, "offset")) sscanf(words, "%lf %lf", &d->offset_j, &d->module_offset_j);
    else if (!strcmp(key, "limit")) sscanf(words, "%lf %lf", &d->limit_w, &d->module_limit_w);
    else if (!strcmp(key, "reasons")) sscanf(words, "%llu %llu", &d->reasons[0], &d->reasons[1]);
    else if (!strcmp(key, "changed")) d->changed_s = atof(words);
    else if (!strcmp(key, "clocks")) sscanf(words, "%d %d %d %d", &d->clock_mhz[0], &d->clock_mhz[1], &d->memory_clock_mhz, &d->highest_clock_mhz);
    else if (!strcmp(key, "temperatures")) sscanf(words, "%d %d", &d->temperature_c, &d->memory_temperature_c);
    else if (!strcmp(key, "ecc")) sscanf(words, "%llu %llu %llu %llu", &d->corrected[0], &d->corrected[1], &d->uncorrected[0], &d->uncorrected[1]);
    else if (!strcmp(key, "default_limit")) d->default_limit_w = atof(words);
    else if (!strcmp(key, "processes")) d->processes = atoi(words);
    else if (!strcmp(key, "c2c")) d->c2c = atoi(words);
    else if (!strcmp(key, "cpus")) sscanf(words, "%d %d", &d->first_cpu, &d->last_cpu);
    else if (!strcmp(key, "mig")) read_instances(d, words);
    else if (!strcmp(key, "lost")) d->lost_s = atof(words);
    else if (!strcmp(key, "stuck")) d->stuck_s = atof(words);
    else if (!strcmp(key, "error") || !strcmp(key, "block")) read_rule(d, key, words);
    else fprintf(stderr, "fake NVML: no key is called %s\n", key);
}

static void open_clock(char *path) {
    int file;
    void *place;
    path[strcspn(path, "\n")] = 0;
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return;
    place = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (place != MAP_FAILED)
        clock_s = place;
}

static void begin(struct device *d, int number) {
    memset(d, 0, sizeof *d);
    d->present = 1;
    d->self.of = d;
    d->gain = 1;
    d->tick_s = d->period_s = 0.1;
    d->seen_s = 0.025;
    d->average_s = 1;
    d->lost_s = d->stuck_s = d->changed_s = INFINITY;
    d->last_cpu = -1;
    snprintf(d->self.uuid, WORD, "GPU-%08x-0000-0000-0000-000000000000", number);
    snprintf(d->name, WORD, "Fake GPU");
}

static void control(void) {
    char line[LINE], key[WORD];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "re") : NULL;
    int number, used;
    memset(device, 0, sizeof device);
    count = init_code = 0;
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%d %95s %n", &number, key, &used) == 2 && number >= 0 && number < DEVICES) {
            if (!device[number].present)
                begin(&device[number], number);
            if (number >= count)
                count = number + 1;
            set(&device[number], key, line + used);
        } else if (!strncmp(line, "start ", 6)) start_s = atof(line + 6);
        else if (!strncmp(line, "clock ", 6)) open_clock(line + 6);
        else if (!strncmp(line, "init ", 5)) init_code = atoi(line + 5);
    }
    fclose(file);
}

/* -- what every call goes through ----------------------------------------------------------------------------- */

/* Return the device behind a handle, or the error of the call. Block first if the call is set to block. */
static int enter(const struct handle *h, const char *what, const struct device **d) {
    int i;
    if (!users)
        return UNINITIALIZED;
    if (!h || !h->of)
        return INVALID_ARGUMENT;
    *d = h->of;
    for (i = 0; i < (*d)->rules; i++) {
        const struct rule *r = &(*d)->rule[i];
        if (strcmp(r->what, what) || now_s() < r->from_s)
            continue;
        if (r->block_s > 0) {
            struct timespec t = {(time_t)r->block_s, (long)(1e9 * fmod(r->block_s, 1))};
            nanosleep(&t, NULL);
        }
        if (r->code)
            return r->code;
    }
    return now_s() >= (*d)->lost_s ? LOST : SUCCESS;
}

/* Like `enter`; a MIG instance has no power of its own. */
static int whole(const struct handle *h, const char *what, const struct device **d) {
    int code = enter(h, what, d);
    return code ? code : h->is_mig ? NOT_SUPPORTED : SUCCESS;
}

static int text(const char *from, char *to, unsigned int room) {
    snprintf(to, room, "%s", from);
    return SUCCESS;
}

/* -- NVML ----------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (!users)
        control();
    if (init_code)
        return init_code;
    users++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!users)
        return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned int *found) {
    *found = (unsigned int)count;
    return users ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct handle **found) {
    const struct device *d;
    if (index >= (unsigned int)count || !device[index].present)
        return INVALID_ARGUMENT;
    *found = &device[index].self;
    return enter(*found, "handle", &d);
}

int nvmlDeviceGetUUID(struct handle *h, char *to, unsigned int room) {
    const struct device *d;
    int code = enter(h, "uuid", &d);
    return code ? code : text(h->uuid, to, room);
}

int nvmlDeviceGetName(struct handle *h, char *to, unsigned int room) {
    const struct device *d;
    int code = enter(h, "name", &d);
    return code ? code : text(d->name, to, room);
}

int nvmlDeviceGetCudaComputeCapability(struct handle *h, int *major, int *minor) {
    const struct device *d;
    int code = enter(h, "capability", &d);
    if (code)
        return code;
    *major = d->major;
    *minor = d->minor;
    return d->major ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(struct handle *h, unsigned int *current, unsigned int *pending) {
    const struct device *d;
    int code = enter(h, "mig", &d);
    if (code)
        return code;
    *current = *pending = d->instances > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct handle *h, unsigned int *most) {
    const struct device *d;
    *most = INSTANCES;
    return enter(h, "mig", &d);
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *h, unsigned int index, struct handle **found) {
    const struct device *d;
    int code = enter(h, "mig", &d);
    if (code)
        return code;
    if (index >= (unsigned int)d->instances)
        return NOT_FOUND;
    *found = &h->of->mig[index];
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetC2cModeInfoV(struct handle *h, unsigned int *enabled) {
    const struct device *d;
    int code = enter(h, "c2c", &d);
    if (code)
        return code;
    *enabled = (unsigned int)d->c2c;
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinityWithinScope(struct handle *h, unsigned int words, unsigned long *mask, unsigned int scope) {
    const struct device *d;
    int code = enter(h, "cpus", &d), cpu, bits = (int)(8 * sizeof *mask);
    (void)scope;
    if (code)
        return code;
    if (d->last_cpu < d->first_cpu)
        return NOT_SUPPORTED;
    memset(mask, 0, words * sizeof *mask);
    for (cpu = d->first_cpu; cpu <= d->last_cpu && cpu / bits < (int)words; cpu++)
        mask[cpu / bits] |= 1UL << (cpu % bits);
    return SUCCESS;
}
#endif

int nvmlDeviceGetTotalEnergyConsumption(struct handle *h, unsigned long long *energy_mj) {
    const struct device *d;
    int code = whole(h, "energy", &d);
    if (code)
        return code;
    *energy_mj = counter_mj(d, d->total_is_module ? &d->module : &d->gpu);
    return SUCCESS;
}

/* Per the NVML reference: an instant value on GA100 and older, the mean of one second on newer devices. */
int nvmlDeviceGetPowerUsage(struct handle *h, unsigned int *power_mw) {
    const struct device *d;
    int code = whole(h, "usage", &d);
    if (code)
        return code;
    *power_mw = (unsigned int)(1e3 * gauge_w(d, &d->gpu, 10 * d->major + d->minor <= 80 ? d->seen_s : d->average_s));
    return SUCCESS;
}

static int limit(struct handle *h, const char *what, unsigned int *limit_mw) {
    const struct device *d;
    int code = whole(h, what, &d);
    if (code)
        return code;
    *limit_mw = (unsigned int)(1e3 * d->limit_w);
    return d->limit_w > 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetEnforcedPowerLimit(struct handle *h, unsigned int *limit_mw) {
    return limit(h, "enforced", limit_mw);
}

int nvmlDeviceGetPowerManagementLimit(struct handle *h, unsigned int *limit_mw) {
    return limit(h, "management", limit_mw);
}

int nvmlDeviceGetPowerManagementDefaultLimit(struct handle *h, unsigned int *limit_mw) {
    const struct device *d;
    int code = whole(h, "default_limit", &d);
    if (code)
        return code;
    *limit_mw = (unsigned int)(1e3 * d->default_limit_w);
    return d->default_limit_w > 0 ? SUCCESS : NOT_SUPPORTED;
}

static int now(const struct device *d) {
    return now_s() >= d->changed_s;
}

/* Before driver 535 the call had another name. */
#ifdef OLD_DRIVER
int nvmlDeviceGetCurrentClocksThrottleReasons(struct handle *h, unsigned long long *reasons) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(struct handle *h, unsigned long long *reasons) {
#endif
    const struct device *d;
    int code = whole(h, "reasons", &d);
    if (code)
        return code;
    *reasons = d->reasons[now(d)];
    return SUCCESS;
}

static int positive(int code, int value, unsigned int *to) {
    if (code)
        return code;
    *to = (unsigned int)value;
    return value > 0 ? SUCCESS : NOT_SUPPORTED;
}

/* Clock 1 is that of the multiprocessors, 2 that of the memory. */
int nvmlDeviceGetClockInfo(struct handle *h, unsigned int clock, unsigned int *mhz) {
    const struct device *d;
    int code = whole(h, "clock", &d);
    return positive(code, code ? 0 : clock == 1 ? d->clock_mhz[now(d)] : clock == 2 ? d->memory_clock_mhz : 0, mhz);
}

int nvmlDeviceGetMaxClockInfo(struct handle *h, unsigned int clock, unsigned int *mhz) {
    const struct device *d;
    int code = whole(h, "highest_clock", &d);
    return positive(code, code || clock != 1 ? 0 : d->highest_clock_mhz, mhz);
}

int nvmlDeviceGetTemperature(struct handle *h, unsigned int sensor, unsigned int *celsius) {
    const struct device *d;
    int code = whole(h, "temperature", &d);
    return positive(code, code || sensor ? 0 : d->temperature_c, celsius);
}

/* Kind 0 are corrected errors, 1 uncorrected ones; counter 0 are those since the driver was loaded. */
int nvmlDeviceGetTotalEccErrors(struct handle *h, unsigned int kind, unsigned int counter, unsigned long long *errors) {
    const struct device *d;
    int code = whole(h, "ecc", &d);
    if (code)
        return code;
    *errors = counter ? 1000000 : kind ? d->uncorrected[now(d)] : d->corrected[now(d)];
    return SUCCESS;
}

struct process {
    unsigned int pid;
    unsigned long long memory;
    unsigned int gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(struct handle *h, unsigned int *places, struct process *found) {
    const struct device *d;
    int i, room = (int)*places, code = whole(h, "processes", &d);
    if (code)
        return code;
    *places = (unsigned int)d->processes;
    if (room < d->processes)
        return INSUFFICIENT_SIZE;
    for (i = 0; i < d->processes; i++)
        found[i] = (struct process){.pid = 1000u + (unsigned int)i};
    return SUCCESS;
}

#ifndef OLD_DRIVER
struct field {
    uint32_t id, scope;
    int64_t timestamp, latency_us;
    uint32_t type, code;
    union {
        double d;
        unsigned int ui;
        unsigned long long ull;
    } value;
};

/* One field of one scope (0: the GPU, 1: the module); `what` in the control file is e.g. instant or module_instant. */
static void read_field(const struct handle *h, struct field *f) {
    static const char *const names[2][4] = {{"instant", "average", "scoped_energy", "scoped_limit"},
                                            {"module_instant", "module_average", "module_energy", "module_limit"}};
    const struct device *d;
    const struct profile *p;
    int kind = f->id == FIELD_INSTANT ? 0 : f->id == FIELD_AVERAGE ? 1 : f->id == FIELD_ENERGY ? 2 : 3;
    double limit_w;
    f->timestamp = (int64_t)(1e6 * now_s());
    f->latency_us = 0;
    if (f->id == FIELD_MEMORY_TEMPERATURE) {
        f->type = TYPE_UNSIGNED;
        f->value.ull = 0;
        f->code = (uint32_t)whole(h, "memory_temperature", &d);
        if (!f->code)
            f->code = (uint32_t)positive(SUCCESS, d->memory_temperature_c, &f->value.ui);
        return;
    }
    if (f->scope > 1 || f->id < FIELD_AVERAGE || f->id > FIELD_ENERGY || (kind == 3 && f->id != FIELD_LIMIT)) {
        f->code = INVALID_ARGUMENT;
        return;
    }
    f->code = (uint32_t)whole(h, names[f->scope][kind], &d);
    if (f->code)
        return;
    p = f->scope ? &d->module : &d->gpu;
    limit_w = f->scope ? d->module_limit_w : d->limit_w;
    if (!p->points || (kind == 3 && limit_w <= 0)) {
        f->code = NOT_SUPPORTED;
        return;
    }
    f->type = kind == 2 ? TYPE_UNSIGNED_LONG_LONG : TYPE_UNSIGNED;
    f->value.ull = 0;
    if (kind == 2) f->value.ull = counter_mj(d, p);
    else if (kind == 3) f->value.ui = (unsigned int)(1e3 * limit_w);
    else f->value.ui = (unsigned int)(1e3 * gauge_w(d, p, kind == 0 ? d->seen_s : d->average_s) + 1e-6);
}

int nvmlDeviceGetFieldValues(struct handle *h, int fields, struct field *f) {
    const struct device *d;
    int i, code = enter(h, "fields", &d);
    if (code)
        return code;
    for (i = 0; i < fields; i++)
        read_field(h, &f[i]);
    return SUCCESS;
}
#endif
