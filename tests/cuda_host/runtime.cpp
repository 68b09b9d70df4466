// Functions of the CUDA runtime, on top of host/memory.h and host/order.h.
#include "cuda_runtime.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <string_view>

#include "host/memory.h"

namespace {

using namespace sy::cuda_host;

// Number of devices: as many as CUDA_VISIBLE_DEVICES names, or 8 if it is not set.
int visible_devices() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return 8;
  const std::string_view list = visible;
  return list.empty() ? 0 : 1 + static_cast<int>(std::count(list.begin(), list.end(), ','));
}
int device_count = visible_devices(), current_device = 0;

// True if CUDA_MODULE_LOADING is EAGER. The driver reads it at its first call.
bool loads_at_once() {
  static const bool eager = [] {
    const char* const wanted = std::getenv("CUDA_MODULE_LOADING");
    return wanted && std::string_view(wanted) == "EAGER";
  }();
  return eager;
}
// Allocates device memory for code, which is never freed. Returns false if no memory is left.
bool take_for_code(std::size_t bytes) {
  if (!allocate(bytes)) return false;
  counter_values.library_bytes += static_cast<std::int64_t>(bytes);
  return true;
}
constexpr std::size_t kernel_bytes = std::size_t{1} << 20, all_kernels_bytes = std::size_t{64} << 20;

// Sizes of pinned host memory, by address.
std::map<const std::byte*, std::size_t> pinned;

bool is_pinned(const void* memory) {
  const auto* p = static_cast<const std::byte*>(memory);
  const auto next = pinned.upper_bound(p);
  return next != pinned.begin() && p < std::prev(next)->first + std::prev(next)->second;
}

std::size_t hash_of(const void* memory, std::size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(memory), bytes});
}

// Host memory that a copy reads, as it is when the host enqueues the copy. Pageable memory is
// copied at once. Pinned memory is read at any time until the host has waited, so it must not
// change before.
struct HostSource {
  const void* memory;
  std::size_t bytes;
  std::shared_ptr<std::vector<std::byte>> snapshot = {};
  std::size_t hash = 0;

  HostSource(const void* at, std::size_t n) : memory(at), bytes(n) {
    const auto* begin = static_cast<const std::byte*>(at);
    if (is_pinned(at))
      hash = hash_of(at, n);
    else
      snapshot = std::make_shared<std::vector<std::byte>>(begin, begin + n);
  }
  const void* read(const Operation& operation) const {
    if (snapshot) return snapshot->data();
    operation.stream->arrivals.push_back({operation.number, [=, source = *this] {
                                            if (hash_of(source.memory, source.bytes) != source.hash)
                                              mistake("the host changed pinned memory before {} was waited for",
                                                      text(operation));
                                          }});
    return memory;
  }
};

// Host memory is garbage until the host has waited for the copy that writes it.
void make_garbage(void* to, std::size_t bytes) {
  std::memset(to, 0xcb, bytes);
}
void write_host(const Operation& operation, void* to, const void* from, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  operation.stream->arrivals.push_back({operation.number, [to, copy = std::vector<std::byte>(begin, begin + bytes)] {
                                          std::memcpy(to, copy.data(), copy.size());
                                        }});
}

void check_kind(const Operation& operation, const void* to, const void* from, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyHostToHost ||
      (kind != cudaMemcpyDefault && (is_device(to) != to_device || is_device(from) != from_device)))
    mistake("{}: the kind of the copy is not where its operands are", text(operation));
}

// Prepares one row of a copy when the host enqueues it. The returned function copies the row when
// the operation runs.
std::function<void(const Operation&)> copy_of_row(void* to, const void* from, std::size_t bytes) {
  const bool to_host = !is_device(to);
  if (to_host) make_garbage(to, bytes);
  std::optional<HostSource> source;
  if (!is_device(from)) source.emplace(from, bytes);
  return [=](const Operation& operation) {
    const void* data = from;
    if (source)
      data = source->read(operation);
    else
      read_range(operation, from, bytes, "the source");
    if (to_host) return write_host(operation, to, data, bytes);
    write_range(operation, to, bytes, "the destination");
    std::memmove(to, data, bytes);
  };
}

cudaError_t last_error = cudaSuccess;
cudaError_t failed(cudaError_t code) {
  return last_error = code;
}

void wait_for(const Clock& clock) {
  if (!host_knows(clock)) ++counter_values.waits;
  host_waits(clock);
}

std::chrono::milliseconds latency{0};

// Result of a query. Unfinished work is not ready at first, so that callers learn to wait. When it
// is ready, the host's clock includes it.
template <class T>
cudaError_t query(T& of, bool run, const Clock& clock) {
  const auto now = std::chrono::steady_clock::now();
  if (!run || includes_hung(clock)) return failed(cudaErrorNotReady);
  if (!host_knows(clock) && (!of.asked || now - *of.asked < latency)) {
    if (!of.asked) of.asked = now;
    return failed(cudaErrorNotReady);
  }
  wait_for(clock);
  return cudaSuccess;
}

constexpr struct {
  cudaError_t code;
  const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"}};

}  // namespace

namespace sy::cuda_host {

void set_latency(std::chrono::milliseconds value) {
  latency = value;
}

bool load(const void* kernel) {
  static std::set<const void*> loaded;
  if (loads_at_once() || loaded.count(kernel)) return true;
  if (!take_for_code(kernel_bytes)) return false;
  loaded.insert(kernel);
  return true;
}

void set_device_count(int count) {
  device_count = count;
}

}  // namespace sy::cuda_host

const char* cudaGetErrorName(cudaError_t code) {
  for (const auto& error : errors)
    if (error.code == code) return error.name;
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t code) {
  for (const auto& error : errors)
    if (error.code == code) return error.text;
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

// ---- devices ----

cudaError_t cudaGetDeviceCount(int* count) {
  loads_at_once();
  *count = device_count;
  return device_count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count) return failed(cudaErrorInvalidDevice);
  current_device = device;
  static const bool loaded = !loads_at_once() || take_for_code(all_kernels_bytes);
  return loaded ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count) return failed(cudaErrorInvalidDevice);
  // CUDA_HOST_MULTIPROCESSORS emulates a larger or smaller card. An H100 has 132 multiprocessors.
  const char* const value = std::getenv("CUDA_HOST_MULTIPROCESSORS");
  const int multiprocessors = value ? std::atoi(value) : 132;
  *properties = {"CUDA emulator", device_bytes(), 227 * 1024, 9, 0, multiprocessors, 0, device + 1, 0};
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  finish_all();
  wait_for(everything());
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = device_bytes();
  *free = *total - allocated_bytes();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  loads_at_once();
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return cudaDriverGetVersion(version);
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  attributes->binaryVersion = 90;
  return cudaSuccess;
}

// ---- streams and events ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking)
    mistake("a stream that waits for the null stream: create it with cudaStreamNonBlocking");
  *stream = make_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  check_alive(stream, "cudaStreamDestroy");
  check_not_captured(stream, "cudaStreamDestroy");
  finish(stream);
  stream->alive = false;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  check_alive(stream, "cudaStreamSynchronize");
  check_not_captured(stream, "cudaStreamSynchronize");
  finish(stream);
  wait_for(stream->clock);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  check_alive(stream, "cudaStreamQuery");
  check_not_captured(stream, "cudaStreamQuery");
  if (!stream->queue.empty()) advance(stream);
  return query(*stream, stream->queue.empty(), stream->clock);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  check_alive(stream, "cudaStreamWaitEvent");
  check_not_captured(stream, "cudaStreamWaitEvent");
  check_alive(event, "cudaStreamWaitEvent");
  run_or_keep(
      stream, [stream, point = event->record] { return stream->clock.join(point->clock), true; },
      [point = event->record] { return point->reached ? nullptr : point->stream; });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = make_event();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  check_alive(event, "cudaEventDestroy");
  event->alive = false;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  check_alive(event, "cudaEventRecord");
  check_alive(stream, "cudaEventRecord");
  check_not_captured(stream, "cudaEventRecord");
  event->record = std::make_shared<Record>(Record{stream, false});
  event->asked.reset();
  run_or_keep(stream, [stream, point = event->record] {
    point->clock = stream->clock;
    return point->reached = true;
  });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  check_alive(event, "cudaEventSynchronize");
  finish(*event->record);
  wait_for(event->record->clock);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  check_alive(event, "cudaEventQuery");
  if (!event->record->reached) advance(event->record->stream);
  return query(*event, event->record->reached, event->record->clock);
}

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  check_alive(stream, "cudaStreamBeginCapture");
  if (stream->capture) return failed(cudaErrorIllegalState);
  stream->capture = make_graph();
  ++captures();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  check_alive(stream, "cudaStreamEndCapture");
  if (stream->capture) --captures();
  *graph = std::exchange(stream->capture, nullptr);
  return *graph ? cudaSuccess : failed(cudaErrorIllegalState);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  check_alive(graph, "cudaGraphInstantiate");
  *executable = make_executable(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  check_alive(executable, "cudaGraphLaunch");
  check_not_captured(stream, "cudaGraphLaunch");
  ++counter_values.graphs;
  for (const auto& operation : executable->operations) enqueue(stream, operation);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  check_alive(graph, "cudaGraphDestroy");
  graph->operations.clear();
  graph->alive = false;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return cudaGraphDestroy(executable);
}

// ---- memory ----

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  ++counter_values.allocations;
  *memory = allocate(bytes);
  return *memory || bytes == 0 ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

// Waits for all operations, as the real cudaFree does.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  ++counter_values.frees;
  finish_all();
  wait_for(everything());
  release(memory);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  ++counter_values.allocations;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*memory == nullptr) return failed(cudaErrorMemoryAllocation);
  pinned[static_cast<std::byte*>(*memory)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  ++counter_values.frees;
  finish_all();
  wait_for(everything());
  if (pinned.erase(static_cast<const std::byte*>(memory)) == 0)
    mistake("cudaFreeHost of memory that cudaMallocHost has not given");
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                            std::source_location where) {
  if (kind != cudaMemcpyDeviceToDevice) check_not_captured(stream, "a copy from or to the host");
  check_kind({stream, 0, "cudaMemcpyAsync", where}, to, from, bytes > 0 ? kind : cudaMemcpyDefault);
  counter_values.copies += kind == cudaMemcpyDeviceToDevice;
  const auto copy = bytes > 0 ? copy_of_row(to, from, bytes) : [](const Operation&) {};
  enqueue(stream, [=](Stream* on) { copy(start_operation(on, "cudaMemcpyAsync", where)); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream,
                              std::source_location where) {
  check_not_captured(stream, "cudaMemcpy2DAsync");
  if (width > to_pitch || width > from_pitch) return failed(cudaErrorInvalidValue);
  if (width == 0 || height == 0) return cudaSuccess;
  check_kind({stream, 0, "cudaMemcpy2DAsync", where}, to, from, kind);
  std::vector<std::function<void(const Operation&)>> rows;
  for (std::size_t row = 0; row < height; ++row)
    rows.push_back(copy_of_row(static_cast<std::byte*>(to) + row * to_pitch,
                               static_cast<const std::byte*>(from) + row * from_pitch, width));
  enqueue(stream, [=](Stream* on) {
    const Operation operation = start_operation(on, "cudaMemcpy2DAsync", where);
    for (const auto& row : rows) row(operation);
  });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream,
                            std::source_location where) {
  enqueue(stream, [=](Stream* on) {
    const Operation operation = start_operation(on, "cudaMemsetAsync", where);
    if (bytes == 0) return;
    write_range(operation, memory, bytes, "the destination");
    std::memset(memory, value, bytes);
  });
  return cudaSuccess;
}
