// Which operation has happened before which, and when it runs. On a device, operations of two streams may run in any order
// that no event forbids. They run at once here, as the host issues them, or late, in an order by a seed (set_running). As no
// order of one run shows all that is possible, every stream keeps a vector clock: for each
// stream, how many of its operations have surely ended. Events carry clocks from stream to stream, and the host has one of
// its own, which it joins with those that it waits for.
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

// What was put on a stream while it was captured, in order: calls that put it on another.
struct Graph {
  std::vector<std::function<void(Stream*)>> operations;
  bool alive = true;
};
struct GraphExec : Graph {};

// A point of a stream, which an event was recorded at.
struct Record {
  Stream* stream = nullptr;
  bool reached = true;
  Clock clock = {};
};

// What a stream keeps for later.
struct Kept {
  std::function<bool()> run;       // false: it goes on, ask again
  std::function<Stream*()> needs;  // the stream that must go on before; null: none. May be empty.
  Clock host = {};                 // what the host knew when it was given
};

struct Stream {
  int number;
  Graph* capture = nullptr;  // what is put on it goes there
  bool alive = true;
  std::uint64_t issued = 0;  // operations
  Clock clock;               // what has ended before the stream's next operation starts
  // What the host may know once it has waited for the operation of that number: delivers a copy, checks a source.
  struct Arrival {
    std::uint64_t number;
    std::function<void()> arrive;
  };
  std::deque<Arrival> arrivals;
  std::deque<Kept> kept;
  std::optional<std::chrono::steady_clock::time_point> asked;  // when cudaStreamQuery first said that it has not ended
};

struct Event {
  bool alive = true;
  std::shared_ptr<Record> record = std::make_shared<Record>();  // the latest
  std::optional<std::chrono::steady_clock::time_point> asked;
};

Stream* make_stream();
Event* make_event();
Graph* make_graph();
GraphExec* make_executable(const Graph& graph);
void check_alive(const Stream* stream, const char* call);
void check_alive(const Event* event, const char* call);
void check_alive(const Graph* graph, const char* call);
// Graphs hold kernels, products, and copies on the device; nothing else may use a stream that is captured.
void check_not_captured(const Stream* stream, const char* call);

// Puts an operation on a stream, or in the graph that is captured on it.
void put(Stream* stream, const std::function<void(Stream*)>& operation);

// Runs it on the stream now, or keeps it until its turn, which does not come behind what hangs.
void run_or_keep(Stream* stream, std::function<bool()> run, std::function<Stream*()> needs = {});
// Until all that the stream has been given has run; all streams; until a point is reached.
void finish(Stream* stream);
void finish_all();
void finish(const Record& record);
// What the stream keeps first runs, or what that needs. False: that waits for ever.
bool advance(Stream* stream);
// What may run beside the host meanwhile.
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

// The operation never ends, until its owner is through with it; the host must not wait for it, but may ask.
void hang(const Operation& operation, const void* owner);
void end_hung(const void* owner);
bool includes_hung(const Clock& clock);

Clock everything();  // that has been issued
// The host waits for all that a clock says.
void host_waits(const Clock& clock);
bool host_knows(const Clock& clock);

// Who wrote last and who has read since, of every byte of an allocation.
class AccessLog {
 public:
  explicit AccessLog(std::size_t bytes) { runs_[0] = {}, runs_[bytes] = {}; }
  // Reports an access that does not come after those that it depends on. `what` names the memory.
  void read(std::size_t begin, std::size_t end, const Operation& operation, const std::function<std::string()>& what);
  void write(std::size_t begin, std::size_t end, const Operation& operation, const std::function<std::string()>& what);
  // The last to write a byte, for reports.
  std::string last_writer(std::size_t at) const;

 private:
  struct Run {  // of bytes with one history; up to the next one
    Operation writer;
    std::vector<Operation> readers;  // since; one a stream
  };
  std::map<std::size_t, Run>::iterator split(std::size_t at);
  std::map<std::size_t, Run> runs_;
};

}  // namespace sy::cuda_host
