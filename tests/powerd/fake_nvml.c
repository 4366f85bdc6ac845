/* A libnvidia-ml.so.1 of four cards that are a file, which FAKE_NVML names and all processes map.
   It has what pynvml calls for power limits and no more. fake_cards.py writes and reads the file. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define DRIVER_NOT_LOADED 9
#define NUM_CARDS 4

enum { LIVE, DIE_BEFORE_SET, DIE_AFTER_SET };

struct card {
  char uuid[96];
  uint32_t present;
  uint32_t limit_mw, min_mw, max_mw, default_mw, power_mw;
  uint64_t energy_mj, reasons;
  uint32_t sets, bad_sets;     /* how often a limit was set, and to one that it cannot have */
  uint32_t look_code, set_code; /* errors to answer with; 0: none */
  uint32_t energy_code, reasons_code;
  uint32_t round_mw;           /* limits are multiples of it; 0: they are not rounded */
};

struct machine {
  uint32_t init_code, num_inits, moment, slow_us; /* slow_us: what a card's power takes to read */
  struct card cards[NUM_CARDS];
};

static struct machine *machine;
static int users;

int nvmlInitWithFlags(unsigned flags) {
  const char *path = getenv("FAKE_NVML");
  (void)flags;
  if (!machine) {
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED
                          : mmap(0, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (mapped == MAP_FAILED) return DRIVER_NOT_LOADED;
    machine = mapped;
  }
  if (machine->init_code) return machine->init_code;
  machine->num_inits++;
  users++;
  return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
  if (!users) return UNINITIALIZED;
  users--;
  return SUCCESS;
}

const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
  }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  unsigned i;
  if (!users) return UNINITIALIZED;
  for (i = *count = 0; i < NUM_CARDS; i++) *count += machine->cards[i].present;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct card **card) {
  unsigned i;
  if (!users) return UNINITIALIZED;
  for (i = 0; i < NUM_CARDS; i++)
    if (machine->cards[i].present && !index--) {
      *card = &machine->cards[i];
      return SUCCESS;
    }
  return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct card **card) {
  unsigned i;
  if (!users) return UNINITIALIZED;
  for (i = 0; i < NUM_CARDS; i++)
    if (machine->cards[i].present && !strcasecmp(uuid, machine->cards[i].uuid)) {
      *card = &machine->cards[i];
      return SUCCESS;
    }
  return NOT_FOUND;
}

static int text(const char *from, char *to, unsigned length) {
  if (!users) return UNINITIALIZED;
  if (strlen(from) + 1 > length) return 7;
  strcpy(to, from);
  return SUCCESS;
}

int nvmlDeviceGetUUID(struct card *card, char *to, unsigned length) {
  return text(card->uuid, to, length);
}

int nvmlDeviceGetName(struct card *card, char *to, unsigned length) {
  (void)card;
  return text("Fake 9000", to, length);
}

#define FIGURE(name, type, field, code)             \
  int name(struct card *card, type *to) {           \
    if (!users) return UNINITIALIZED;               \
    int failed = code;                              \
    if (failed) return failed;                      \
    *to = card->field;                              \
    return SUCCESS;                                 \
  }

FIGURE(nvmlDeviceGetPowerUsage, unsigned, power_mw, (usleep(machine->slow_us), card->look_code))
FIGURE(nvmlDeviceGetPowerManagementLimit, unsigned, limit_mw, card->look_code)
FIGURE(nvmlDeviceGetEnforcedPowerLimit, unsigned, limit_mw, card->look_code)
FIGURE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, default_mw, card->look_code)
FIGURE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj, card->energy_code)
#ifdef OLD_DRIVER
FIGURE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons, card->reasons_code)
#else
FIGURE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons, card->reasons_code)
#endif

int nvmlDeviceGetPowerManagementLimitConstraints(struct card *card, unsigned *min, unsigned *max) {
  if (!users) return UNINITIALIZED;
  if (card->look_code) return card->look_code;
  *min = card->min_mw;
  *max = card->max_mw;
  return SUCCESS;
}

int nvmlDeviceSetPowerManagementLimit(struct card *card, unsigned limit_mw) {
  if (!users) return UNINITIALIZED;
  if (card->set_code) return card->set_code;
  if (limit_mw < card->min_mw || limit_mw > card->max_mw) {
    card->bad_sets++;
    return INVALID_ARGUMENT;
  }
  if (machine->moment == DIE_BEFORE_SET) kill(getpid(), SIGKILL);
  card->limit_mw = limit_mw - (card->round_mw ? limit_mw % card->round_mw : 0);
  card->sets++;
  if (machine->moment == DIE_AFTER_SET) kill(getpid(), SIGKILL);
  return SUCCESS;
}
