// A driver of two devices, without a GPU: it writes down what is launched and refuses what the real one would.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {
constexpr int kInvalid = 1, kNotInitialized = 3, kNotFound = 500;
bool initialized = false;
thread_local void* stack[8];
thread_local int depth = 0;
std::uintptr_t module_context = 0;
int dynamic_shared = 0;
void* context(int device) { return reinterpret_cast<void*>(std::uintptr_t(0x100 + device)); }
void* current() { return depth ? stack[depth - 1] : nullptr; }
}  // namespace

extern "C" {
struct Launched {
  unsigned grid[3], block[3], shared;
  void *stream, *context, *function;
  std::int64_t first;
  float second;
} launched;
int popped = 0;

int cuInit(unsigned) {
  initialized = true;
  return 0;
}
int cuGetErrorName(int error, const char** text) {
  *text = error == kNotFound ? "CUDA_ERROR_NOT_FOUND" : error == kInvalid ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
  return *text ? 0 : kInvalid;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kNotFound ? "named symbol not found" : nullptr;
  return *text ? 0 : kInvalid;
}
int cuDeviceGetCount(int* count) {
  *count = 2;
  return initialized ? 0 : kNotInitialized;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = 40 + ordinal;
  return ordinal < 2 ? 0 : kInvalid;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = 1000 * attribute + device - 40;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** made, int device) {
  *made = context(device - 40);
  return 0;
}
int cuCtxGetCurrent(void** found) {
  *found = current();
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  stack[depth++] = context;
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = stack[--depth];
  ++popped;
  return 0;
}
int cuModuleLoadData(void** module, const char* image) {
  module_context = reinterpret_cast<std::uintptr_t>(current());
  *module = reinterpret_cast<void*>(std::uintptr_t(0x1000));
  return std::memcmp(image,
                     "\x7f"
                     "E\0F",
                     4)
             ? kInvalid
             : 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != reinterpret_cast<void*>(std::uintptr_t(0x1000)) || std::strcmp(name, "add")) return kNotFound;
  *function = reinterpret_cast<void*>(std::uintptr_t(0x2000));
  return reinterpret_cast<std::uintptr_t>(current()) == module_context ? 0 : kInvalid;
}
int cuFuncGetAttribute(int* value, int attribute, void*) {
  *value = attribute == 1 ? 64 : -1;
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  if (attribute != 8) return kInvalid;
  dynamic_shared = value;
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  if (extra || int(shared) > dynamic_shared || bx * by * bz > 1024) return kInvalid;
  launched = {{gx, gy, gz}, {bx, by, bz}, shared, stream, current(), function, 0, 0};
  std::memcpy(&launched.first, arguments[0], 8);
  std::memcpy(&launched.second, arguments[1], 4);
  return 0;
}
}
