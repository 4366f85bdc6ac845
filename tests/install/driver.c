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
