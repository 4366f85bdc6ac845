/* Stands in for NVIDIA's libcuda.so.1: it answers as the environment says. */
#include <stdlib.h>
#include <unistd.h>

static int number(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  if (getenv("DRIVER_CRASHES")) abort();
  if (getenv("DRIVER_HANGS")) pause();
  return number("DRIVER_STATUS");
}

int cuDriverGetVersion(int *version) {
  *version = number("DRIVER_CUDA");
  return 0;
}

/* DRIVER_CARDS: of each card 10 * major + minor of its compute capability, two or three digits. */
static int card(int index) {
  const char *text = getenv("DRIVER_CARDS");
  for (; text && *text; index--) {
    char *end;
    int value = (int)strtol(text, &end, 10);
    if (index == 0) return value;
    text = *end ? end + 1 : end;
  }
  return 0;
}

int cuDeviceGetCount(int *count) {
  for (*count = 0; card(*count); ++*count) {
  }
  return 0;
}

int cuDeviceGet(int *device, int index) {
  *device = index;
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? card(device) / 10 : card(device) % 10;
  return 0;
}
