// Order of the operations of a device, and the time at which they run.
//
// On a device, operations of two streams may run in any order that no event forbids. Here they run
// as soon as the host enqueues them, or late, or in a seeded order (set_running). One order does
// not show all possible ones, so every stream keeps a vector clock. It counts, for each stream, the
// operations that have certainly ended. Events carry clocks from stream to stream. The host has its
// own clock, which it joins with the clocks that it waits for.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "host/report.h"

namespace sy::cuda_host {

class Clock {
 public:
  std::uint64_t of(int stream) const {
    return stream < static_cast<int>(ended_.size()) ? ended_[static_cast<std::size_t>(stream)] : 0;
  }
  void set(int stream, std::uint64_t ended);
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> ended_;
};

struct Stream;

// Operations enqueued on a stream while it was captured, in order. Each function runs its operation
// on a stream.
struct Graph {
  std::vector<std::function<void(Stream*)>> operations;
  bool alive = true;
};
struct GraphExec : Graph {};

// Point of a stream at which an event was recorded.
struct Record {
  Stream* stream = nullptr;
  bool reached = true;
  Clock clock = {};
};

// An enqueued operation that has not run yet.
struct QueuedOperation {
  // Returns false while the operation is in flight; call it again then.
  std::function<bool()> run;
  // The stream that must advance before, or nullptr. May be empty.
  std::function<Stream*()> needs;
  Clock host = {};  // clock of the host when it enqueued the operation
};

struct Stream {
  int number;
  Graph* capture = nullptr;  // collects the enqueued operations; nullptr if not captured
  bool alive = true;
  std::uint64_t issued = 0;  // operations
  Clock clock;               // operations that end before the stream's next one starts
  // Called after the host has waited for operation `number`: delivers a copy, or checks a source.
  struct Arrival {
    std::uint64_t number;
    std::function<void()> arrive;
  };
  std::deque<Arrival> arrivals;
  std::deque<QueuedOperation> queue;
  // Time of the first cudaStreamQuery that returned "not ready".
  std::optional<std::chrono::steady_clock::time_point> asked;
};

struct Event {
  bool alive = true;
  std::shared_ptr<Record> record = std::make_shared<Record>();  // the latest one
  std::optional<std::chrono::steady_clock::time_point> asked;
};

Stream* make_stream();
Event* make_event();
Graph* make_graph();
GraphExec* make_executable(const Graph& graph);
void check_alive(const Stream* stream, const char* call);
void check_alive(const Event* event, const char* call);
void check_alive(const Graph* graph, const char* call);
// Reports a captured stream. Graphs hold only kernels, products, and copies and memsets on the
// device.
void check_not_captured(const Stream* stream, const char* call);
// Number of streams that are being captured.
int& captures();

// Enqueues an operation on a stream, or adds it to the graph that is captured there.
void enqueue(Stream* stream, const std::function<void(Stream*)>& operation);

// Runs an operation on the stream now, or keeps it until the operations before it have run. An
// operation after one that hangs is kept. If `needs` returns a stream, that one must advance first.
void run_or_keep(Stream* stream, std::function<bool()> run, std::function<Stream*()> needs = {});
// Run all operations of a stream; of all streams; up to a recorded point.
void finish(Stream* stream);
void finish_all();
void finish(const Record& record);
// Runs the first operation that the stream keeps, or one that it needs. Returns false if it would
// wait for ever.
bool advance(Stream* stream);
// Runs a few kept operations of random streams, as a device would beside the host.
void go_on();

// An operation on a stream: kernel, copy, product or collective.
struct Operation {
  Stream* stream = nullptr;
  std::uint64_t number = 0;
  const char* what = "";
  Where where;
};
Operation start_operation(Stream* stream, const char* what, Where where);
std::string text(const Operation& operation);

// Makes an operation hang until end_hung is called with its owner. The host may query it, but must
// not wait for it.
void hang(const Operation& operation, const void* owner);
void end_hung(const void* owner);
bool includes_hung(const Clock& clock);

Clock everything();  // clock of all issued operations
// Joins the host's clock with `clock`: the host has waited for these operations.
void host_waits(const Clock& clock);
bool host_knows(const Clock& clock);

// Last writer of every byte of an allocation, and the readers since.
class AccessLog {
 public:
  explicit AccessLog(std::size_t bytes) { runs_[0] = {}, runs_[bytes] = {}; }
  // Report an access that does not come after those on which it depends. `what` names the memory.
  void read(std::size_t begin, std::size_t end, const Operation& operation, const std::function<std::string()>& what);
  void write(std::size_t begin, std::size_t end, const Operation& operation, const std::function<std::string()>& what);
  // Describes the last operation that wrote a byte, for reports.
  std::string last_writer(std::size_t at) const;

 private:
  struct Run {  // bytes with the same history, up to the key of the next entry
    Operation writer;
    std::vector<Operation> readers;  // since the write; one per stream
  };
  std::map<std::size_t, Run>::iterator split(std::size_t at);
  std::map<std::size_t, Run> runs_;
};

}  // namespace sy::cuda_host
