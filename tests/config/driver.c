/* Stands in for NVIDIA's libcuda.so.1 and libnvidia-ml.so.1: they answer as the environment says.

   DRIVER_STATUS, DRIVER_CUDA    of cuInit; CUDA's version, 1000 * major + 10 * minor
   DRIVER_CRASHES, DRIVER_HANGS  instead of an answer
   DRIVER_CARDS                  a card between commas: 86:24576:24000:0:NVIDIA A has compute
                                 capability 8.6, 24,576 MiB of memory, 24,000 of them free, compute
                                 mode 0 and a name; 3 is an exclusive mode, 4 that of a card that
                                 somebody has; what is left out is 0
   DRIVER_CLOCK, DRIVER_BUS      of every card's memory: kHz, bits
   DRIVER_NVLINKS                between all cards, of version 3; 0: PCIe 4.0 x16, over one bridge

   NVML counts cards backwards, so that whoever mixes its order with CUDA's is found out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16, UNAVAILABLE = 46, EXCLUSIVE = 3, HELD = 4, MAJOR = 75, MINOR = 76, MODE = 20, CLOCK = 36, BUS = 37 };

struct card {
  int capability, mode, number;
  size_t total_mib, free_mib;
  char name[64];
};

static int setting(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

/* All cards of the machine; their number. */
static int read_cards(struct card *cards) {
  const char *text = getenv("DRIVER_CARDS");
  int count = 0;
  while (text && *text && count < MOST) {
    struct card *one = memset(&cards[count], 0, sizeof *one);
    sscanf(text, "%d:%zu:%zu:%d:%63[^,]", &one->capability, &one->total_mib, &one->free_mib,
           &one->mode, one->name);
    one->number = count++;
    text = strchr(text, ',');
    text = text ? text + 1 : NULL;
  }
  return count;
}

static void write_uuid(int number, unsigned char *bytes) {
  memset(bytes, 0, 16);
  bytes[15] = (unsigned char)number;
}

static int number_of(const char *uuid) {
  return (int)strtol(uuid + strlen(uuid) - 2, NULL, 16);
}

/* Those that CUDA_VISIBLE_DEVICES leaves, in its order; their number. */
static int visible_cards(struct card *cards) {
  struct card all[MOST];
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  char wanted[1024], *word, *rest = NULL;
  int count = 0, total = read_cards(all);
  if (!visible) {
    memcpy(cards, all, sizeof all);
    return total;
  }
  snprintf(wanted, sizeof wanted, "%s", visible);
  for (word = strtok_r(wanted, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    int number = strncmp(word, "GPU-", 4) ? atoi(word) : number_of(word);
    if (number < 0 || number >= total) break;
    cards[count++] = all[number];
  }
  return count;
}

int cuInit(unsigned flags) {
  (void)flags;
  if (getenv("DRIVER_CRASHES")) abort();
  if (getenv("DRIVER_HANGS")) pause();
  return setting("DRIVER_STATUS");
}

int cuDriverGetVersion(int *version) {
  *version = setting("DRIVER_CUDA");
  return 0;
}

int cuDeviceGetCount(int *count) {
  struct card cards[MOST];
  *count = visible_cards(cards);
  return 0;
}

int cuDeviceGet(int *device, int index) {
  *device = index;
  return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
  struct card cards[MOST];
  visible_cards(cards);
  snprintf(name, (size_t)size, "%s", cards[device].name);
  return 0;
}

int cuDeviceGetUuid_v2(unsigned char *bytes, int device) {
  struct card cards[MOST];
  visible_cards(cards);
  write_uuid(cards[device].number, bytes);
  return 0;
}

int cuDeviceTotalMem_v2(size_t *total, int device) {
  struct card cards[MOST];
  visible_cards(cards);
  *total = cards[device].total_mib << 20;
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  struct card cards[MOST];
  visible_cards(cards);
  struct card *one = &cards[device];
  *value = attribute == MAJOR   ? one->capability / 10
           : attribute == MINOR ? one->capability % 10
           : attribute == CLOCK ? setting("DRIVER_CLOCK")
           : attribute == BUS   ? setting("DRIVER_BUS")
           : attribute == MODE  ? (one->mode == HELD ? EXCLUSIVE : one->mode)
                                : 0;
  return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  struct card cards[MOST];
  visible_cards(cards);
  *context = NULL;
  return cards[device].mode == HELD ? UNAVAILABLE : 0;
}

int nvmlInit_v2(void) { return setting("NVML_STATUS"); }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  struct card cards[MOST];
  int count = read_cards(cards);
  if (strncmp(uuid, "GPU-", 4)) return 6; /* not found */
  *handle = (void *)(size_t)(count - number_of(uuid));
  return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
  struct card cards[MOST];
  struct card *one = &cards[read_cards(cards) - (int)(size_t)handle];
  memory[0] = (unsigned long long)one->total_mib << 20;
  memory[1] = (unsigned long long)one->free_mib << 20;
  memory[2] = memory[0] - memory[1];
  return 0;
}

int cuDeviceCanAccessPeer(int *can, int device, int other) {
  *can = device != other && setting("DRIVER_NVLINKS") > 0;
  return 0;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value) {
  (void)handle;
  *value = 4;
  return setting("DRIVER_BUS") ? 0 : 3; /* not supported */
}

int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value) {
  (void)handle;
  *value = 16;
  return 0;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *value) {
  (void)handle;
  *value = (int)link < setting("DRIVER_NVLINKS");
  return 0;
}

int nvmlDeviceGetNvLinkVersion(void *handle, unsigned link, unsigned *value) {
  (void)handle;
  (void)link;
  *value = 3;
  return 0;
}

int nvmlDeviceGetP2PStatus(void *handle, void *other, int capability, unsigned *value) {
  *value = capability != 2 || handle == other;
  return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(void *handle, void *other, unsigned *value) {
  *value = handle == other ? 0 : 30;
  return 0;
}
