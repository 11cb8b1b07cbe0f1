// A CUDA driver without a device: modules are checked for being ELF files, launches go to a function of the tests.

#include <stdlib.h>
#include <string.h>

typedef int (*Launch)(const char* name, unsigned grid, unsigned block, unsigned shared_bytes, void* stream, void** args);
typedef int (*Load)(void);

typedef struct {
  int shared_bytes;  // the most of a launch: attribute 8
  char name[];
} Function;

static Launch launch;
static Load load;

void on_launch(Launch function) { launch = function; }
void on_load(Load function) { load = function; }

// Two functions of CUDA's runtime as CuPy's table has them. Every launch calls them, so they take no time of Python's.
extern void Py_IncRef(void* object);
extern char _Py_NoneStruct[];
static int device;

int getDevice(int skip_dispatch) {
  (void)skip_dispatch;
  return device;
}
void* setDevice(int number, int skip_dispatch) {
  (void)skip_dispatch;
  device = number;
  Py_IncRef(_Py_NoneStruct);
  return _Py_NoneStruct;
}

int cuGetErrorName(int status, const char** name) {
  *name = status == 912   ? "CUDA_ERROR_INVALID_CLUSTER_SIZE"
          : status == 701 ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
          : status == 200 ? "CUDA_ERROR_INVALID_IMAGE"
                          : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuGetErrorString(int status, const char** text) {
  (void)status;
  *text = "injected";
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = (void*)1;
  return 0;
}
int cuModuleLoadData(void** module, const void* image) {
  if (memcmp(image, "\x7f" "ELF", 4)) return 200;
  *module = malloc(1);
  return load ? load() : 0;
}
int cuModuleUnload(void* module) {
  free(module);
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  if (strchr(name, '<')) return 500;  // drivers know lowered names
  Function* made = malloc(sizeof(Function) + strlen(name) + 1);
  made->shared_bytes = 48 << 10;
  strcpy(made->name, name);
  *function = made;
  return 0;
}
int cuFuncGetAttribute(int* value, int attribute, Function* function) {
  *value = attribute == 8 ? function->shared_bytes : 64;
  return 0;
}
int cuFuncSetAttribute(Function* function, int attribute, int value) {
  if (attribute != 8 || value > 99 << 10) return 1;
  function->shared_bytes = value;
  return 0;
}
int cuLaunchKernel(
    Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
    void* stream, void** args, void** extra) {
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra || (int)shared_bytes > function->shared_bytes) return 1;
  return launch ? launch(function->name, gx, bx, shared_bytes, stream, args) : 0;
}
