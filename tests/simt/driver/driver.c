// What gpu/device.cc asks of the driver's libraries. TANDEM_SIMT_DRIVER: what the driver supports, as CUDA counts.
#include <stdio.h>
#include <stdlib.h>

int cuDriverGetVersion(int* version);
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlSystemGetDriverVersion(char* text, unsigned n_bytes);

int cuDriverGetVersion(int* version) {
  const char* text = getenv("TANDEM_SIMT_DRIVER");
  *version = text ? atoi(text) : 13000;
  return 0;
}
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned n_bytes) {
  int version = 0;
  cuDriverGetVersion(&version);
  snprintf(text, n_bytes, "%s", version >= 13000 ? "580.00" : "550.00");
  return 0;
}
