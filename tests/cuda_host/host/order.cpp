#include "host/order.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string_view>
#include <thread>

namespace sy::cuda_host {

namespace {

// Destroyed streams, events and graphs stay, so that a later use is reported.
std::vector<std::unique_ptr<Stream>> streams;
std::vector<std::unique_ptr<Event>> events;
std::vector<std::unique_ptr<Graph>> graphs;
std::vector<std::unique_ptr<GraphExec>> executables;
Clock host;
const Clock* known = &host;  // the host's clock when it enqueued the running operation

Running running = Running::at_once;
std::mt19937_64 choices;

struct Hung {
  Operation operation;
  const void* owner;
};
std::vector<Hung> hung;
std::size_t queue_limit = 0;

struct FromEnvironment {
  FromEnvironment() {
    const char* const order = std::getenv("CUDA_HOST_ORDER");
    if (!order) return;
    if (std::string_view(order) == "late") {
      running = Running::late;
      return;
    }
    // Each rank has its own order.
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    running = Running::seeded;
    choices.seed(std::strtoull(order, nullptr, 10) * 64 + (rank ? std::strtoull(rank, nullptr, 10) : 0));
  }
} from_environment;

bool ended_before(const Operation& earlier, const Operation& later) {
  return earlier.stream == nullptr || later.stream->clock.of(earlier.stream->number) >= earlier.number;
}

void wait_for_queue_space(Stream* stream) {
  if (queue_limit == 0 || stream == nullptr) return;
  while (stream->queue.size() >= queue_limit)
    if (!advance(stream)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void advance_or_report(Stream* stream) {
  if (!advance(stream)) mistake("the host waits for ever: {} does not end", text(hung.front().operation));
}

}  // namespace

void Clock::set(int stream, std::uint64_t ended) {
  if (stream >= static_cast<int>(ended_.size())) ended_.resize(static_cast<std::size_t>(stream) + 1);
  ended_[static_cast<std::size_t>(stream)] = ended;
}

void Clock::join(const Clock& other) {
  for (int s = 0; s < static_cast<int>(other.ended_.size()); ++s)
    if (other.of(s) > of(s)) set(s, other.of(s));
}

Stream* make_stream() {
  streams.push_back(std::make_unique<Stream>());
  streams.back()->number = static_cast<int>(streams.size()) - 1;
  return streams.back().get();
}

Event* make_event() {
  events.push_back(std::make_unique<Event>());
  return events.back().get();
}

Graph* make_graph() {
  return graphs.emplace_back(std::make_unique<Graph>()).get();
}

GraphExec* make_executable(const Graph& graph) {
  return executables.emplace_back(std::make_unique<GraphExec>(graph)).get();
}

void check_alive(const Stream* stream, const char* call) {
  if (stream == nullptr) mistake("{} on the null stream, which waits for all others: name a stream", call);
  if (!stream->alive) mistake("{} on stream {}, which has been destroyed", call, stream->number);
}

void check_alive(const Event* event, const char* call) {
  if (event == nullptr || !event->alive)
    mistake("{} of an event that {}", call, event ? "has been destroyed" : "is null");
}

void check_alive(const Graph* graph, const char* call) {
  if (graph == nullptr || !graph->alive)
    mistake("{} of a graph that {}", call, graph ? "has been destroyed" : "is null");
}

void check_not_captured(const Stream* stream, const char* call) {
  if (stream != nullptr && stream->capture) mistake("{} on stream {}, which is being captured", call, stream->number);
}

int& captures() {
  static int number = 0;
  return number;
}

void enqueue(Stream* stream, const std::function<void(Stream*)>& operation) {
  if (stream != nullptr && stream->capture)
    stream->capture->operations.push_back(operation);
  else
    run_or_keep(stream, [=] { return operation(stream), true; });
}

void run_or_keep(Stream* stream, std::function<bool()> run, std::function<Stream*()> needs) {
  wait_for_queue_space(stream);
  const auto may_run_now = [&] {
    return !stream || (stream->queue.empty() && !includes_hung(stream->clock) && !(needs && needs()));
  };
  if (running == Running::at_once && may_run_now()) {
    while (!run()) continue;
    return;
  }
  check_alive(stream, "an operation");
  stream->asked.reset();
  stream->queue.push_back({std::move(run), std::move(needs), host});
  if (running == Running::seeded) go_on();
}

bool advance(Stream* stream) {
  while (!stream->queue.empty()) {
    Stream* const before = stream->queue.front().needs ? stream->queue.front().needs() : nullptr;
    if (!before) break;
    if (before->queue.empty()) mistake("stream {} waits for a point that no stream will reach", stream->number);
    stream = before;
  }
  if (stream->queue.empty()) return true;
  if (includes_hung(stream->clock)) return false;
  QueuedOperation& first = stream->queue.front();
  known = &first.host;
  bool ended = false;
  try {
    ended = first.run();
  } catch (...) {
    known = &host;
    stream->queue.pop_front();
    throw;
  }
  known = &host;
  if (ended) stream->queue.pop_front();
  return true;
}

void go_on() {
  for (std::uint64_t n = choices() % 4; n > 0; --n) {
    std::vector<Stream*> busy;
    for (const auto& stream : streams)
      if (!stream->queue.empty()) busy.push_back(stream.get());
    if (!busy.empty()) advance(busy[choices() % busy.size()]);
  }
}

void finish(Stream* stream) {
  while (!stream->queue.empty()) {
    if (running == Running::seeded) go_on();
    advance_or_report(stream);
  }
}

void finish_all() {
  for (const auto& stream : streams) finish(stream.get());
}

void finish(const Record& record) {
  while (!record.reached) {
    if (running == Running::seeded) go_on();
    advance_or_report(record.stream);
  }
}

void set_running(Running mode, std::uint64_t seed) {
  finish_all();
  running = mode;
  choices.seed(seed);
}

void set_queue_limit(std::size_t operations) {
  queue_limit = operations;
}

bool host_knows(const Clock& clock) {
  for (const auto& stream : streams)
    if (clock.of(stream->number) > host.of(stream->number)) return false;
  return true;
}

void hang(const Operation& operation, const void* owner) {
  hung.push_back({operation, owner});
}

void end_hung(const void* owner) {
  std::erase_if(hung, [&](const Hung& h) { return h.owner == owner; });
}

bool includes_hung(const Clock& clock) {
  return std::any_of(hung.begin(), hung.end(),
                     [&](const Hung& h) { return clock.of(h.operation.stream->number) >= h.operation.number; });
}

void host_waits(const Clock& clock) {
  if (includes_hung(clock)) mistake("the host waits for ever: {} does not end", text(hung.front().operation));
  host.join(clock);
  for (const auto& stream : streams)
    while (!stream->arrivals.empty() && stream->arrivals.front().number <= host.of(stream->number)) {
      const auto arrive = std::move(stream->arrivals.front().arrive);
      stream->arrivals.pop_front();
      arrive();
    }
}

Clock everything() {
  Clock all;
  for (const auto& stream : streams) all.join(stream->clock);
  return all;
}

Operation start_operation(Stream* stream, const char* what, Where where) {
  check_alive(stream, what);
  check_not_captured(stream, what);
  stream->clock.join(*known);
  stream->clock.set(stream->number, ++stream->issued);
  stream->asked.reset();
  return {stream, stream->issued, what, where};
}

std::string text(const Operation& operation) {
  if (operation.stream == nullptr) return "nothing";
  return fmt::format("{} at {} on stream {}", operation.what, text(operation.where), operation.stream->number);
}

std::map<std::size_t, AccessLog::Run>::iterator AccessLog::split(std::size_t at) {
  auto next = runs_.lower_bound(at);
  if (next != runs_.end() && next->first == at) return next;
  return runs_.emplace_hint(next, at, std::prev(next)->second);
}

void AccessLog::read(std::size_t begin, std::size_t end, const Operation& operation,
                     const std::function<std::string()>& what) {
  const auto last = split(end);
  for (auto run = split(begin); run != last; ++run) {
    Run& r = run->second;
    if (!ended_before(r.writer, operation))
      mistake("{} reads {} without waiting for {}, which writes it", text(operation), what(), text(r.writer));
    const auto same = std::find_if(r.readers.begin(), r.readers.end(),
                                   [&](const Operation& reader) { return reader.stream == operation.stream; });
    if (same == r.readers.end())
      r.readers.push_back(operation);
    else
      *same = operation;
  }
}

void AccessLog::write(std::size_t begin, std::size_t end, const Operation& operation,
                      const std::function<std::string()>& what) {
  const auto last = split(end), first = split(begin);
  for (auto run = first; run != last; ++run) {
    if (!ended_before(run->second.writer, operation))
      mistake("{} writes {} without waiting for {}, which writes it too", text(operation), what(),
              text(run->second.writer));
    for (const Operation& reader : run->second.readers)
      if (!ended_before(reader, operation))
        mistake("{} writes {} without waiting for {}, which reads it", text(operation), what(), text(reader));
  }
  first->second = {operation, {}};
  runs_.erase(std::next(first), last);
}

std::string AccessLog::last_writer(std::size_t at) const {
  return text(std::prev(runs_.upper_bound(at))->second.writer);
}

}  // namespace sy::cuda_host
