#include "dist/watchdog.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <limits>

#include "dist/machine.h"
#include "dist/runtime.h"
#include "kernels/environment.h"

namespace sy {
namespace {

// Returns the loopback address, and the IPv4 addresses at which other machines may reach this one.
std::vector<std::uint32_t> own_addresses() {
  std::vector<std::uint32_t> found{htonl(INADDR_LOOPBACK)};
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* a = all; a && found.size() < PeerInfo::max_endpoints; a = a->ifa_next)
    if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET && (a->ifa_flags & IFF_LOOPBACK) == 0)
      found.push_back(reinterpret_cast<const sockaddr_in*>(a->ifa_addr)->sin_addr.s_addr);
  freeifaddrs(all);
  return found;
}

sockaddr_in socket_address(std::uint32_t address, std::uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = address;
  to.sin_port = port;
  return to;
}

// Limit of the ranks that a report lists one per line, for silent and for waiting ranks each.
constexpr std::size_t max_listed = 8;

std::string format_seconds(double seconds) {
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 1 : 0);
}

Seconds shorter_limit(const WatchdogLimits& limits) {
  return limits.local > Seconds(0) ? std::min(limits.hang, limits.local) : limits.hang;
}

std::string format_rows(const RowsMoved& rows) {
  return rows.expects < 0 ? "" : fmt::format(": it sends {} rows, and expects {}", rows.sends, rows.expects);
}

Seconds seconds_from_env(VariableName name, Seconds fallback, double min_seconds, const char* range) {
  const char* const value = environment(name);
  if (!value) return fallback;
  char* end = nullptr;
  const double seconds = std::strtod(value, &end);
  if (*value == 0 || *end != 0 || !(seconds >= min_seconds) || seconds > 1e9)
    bad_input("{} = '{}': give a number of seconds {}, or unset it", name.c_str(), value, range);
  return Seconds(seconds);
}

}  // namespace

Seconds hang_timeout() {
  return seconds_from_env("SWITCHYARD_TIMEOUT", WatchdogLimits{}.hang, std::numeric_limits<double>::min(), "above 0");
}

WatchdogLimits watchdog_limits() {
  return {hang_timeout(), seconds_from_env("SWITCHYARD_LOCAL_TIMEOUT", WatchdogLimits{}.local, 0, "or 0 for no limit")};
}

std::vector<int> ranks_to_ask(int rank, int ranks) {
  constexpr int ask_all_up_to = 32;
  std::vector<int> found;
  const auto add = [&](int other) {
    if (other != rank && std::ranges::find(found, other) == found.end()) found.push_back(other);
  };
  if (ranks <= ask_all_up_to)
    for (int r = 0; r < ranks; ++r) add(r);
  else
    for (int distance = 1; distance <= ranks / 2; distance *= 2) {
      add((rank + distance) % ranks);
      add((rank + ranks - distance) % ranks);
    }
  return found;
}

std::string describe_state(const BlockedOn& block, const Phase& phase, double seconds) {
  const std::string where = phase.describe();
  if (!block.operation) return "computes" + where;
  std::string text = fmt::format("has waited {}{} for {}{}{}", format_seconds(seconds), where, block.operation,
                                 block.peers[0] ? " " : "", block.peers);
  return text + format_rows(block.rows);
}

Watchdog::Watchdog(const RankContext& context, const WatchdogLimits& limits)
    : context_(context),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      last_check_(Clock::now()),
      local_since_(last_check_) {
  set_limits(limits);
  // The main thread handles all signals.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Watchdog::set_limits(const WatchdogLimits& limits) {
  limits_ = limits;
  poll_interval_ = std::chrono::duration_cast<Clock::duration>(
      std::clamp<Seconds>(shorter_limit(limits) / 8, std::chrono::milliseconds(5), std::chrono::seconds(10)));
}

Watchdog::~Watchdog() {
  stopping_ = true;
  eventfd_write(wake_fd_, 1);
  thread_.join();
  close(wake_fd_);
  for (const Endpoint& own : sockets_) close(own.socket);
}

// Leaves out an address that cannot be bound. Without any socket, no rank is asked.
void Watchdog::open_sockets() {
  for (const std::uint32_t address : own_addresses()) {
    const int own = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in name = socket_address(address, 0);
    socklen_t length = sizeof name;
    if (own < 0) return;
    if (bind(own, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0 &&
        getsockname(own, reinterpret_cast<sockaddr*>(&name), &length) == 0)
      sockets_.push_back({address, name.sin_port, own});
    else
      close(own);
  }
}

// Returns the socket of the address from which the kernel would send.
int Watchdog::socket_to(const Endpoint& to) const {
  const sockaddr_in there = socket_address(to.address, to.port);
  sockaddr_in here{};
  socklen_t length = sizeof here;
  const int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe >= 0 && connect(probe, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0)
    getsockname(probe, reinterpret_cast<sockaddr*>(&here), &length);
  if (probe >= 0) close(probe);
  for (const Endpoint& own : sockets_)
    if (own.address == here.sin_addr.s_addr) return own.socket;
  return sockets_.empty() ? -1 : sockets_.back().socket;
}

void Watchdog::rendezvous(Comm& world, const WatchdogLimits& limits) {
  std::vector<Peer> peers(world.size());
  HeartbeatKey key{};
  if (world.size() > 1) {
    open_sockets();  // watch() does not use them before peers_ is set
    agree_on_errors(world, [&] {
      if (world.rank() == 0) key = random_heartbeat_key();
    });
    world.broadcast(view_of(key.data(), {static_cast<Index>(key.size())}), 0);
    PeerInfo mine{};
    host_name().copy(mine.host, sizeof mine.host - 1);
    mine.machine = machine_id();
    const std::size_t without_loopback = !sockets_.empty() && sockets_[0].address == htonl(INADDR_LOOPBACK) ? 0 : 1;
    for (std::size_t i = 0; i < sockets_.size() && i + without_loopback < PeerInfo::max_endpoints; ++i)
      mine.endpoints[i + without_loopback] = {sockets_[i].address, sockets_[i].port};
    std::vector<PeerInfo> all(peers.size());
    const auto bytes = static_cast<Index>(sizeof(PeerInfo));
    world.all_gather(view_of(reinterpret_cast<std::uint8_t*>(&mine), {bytes}),
                     view_of(reinterpret_cast<std::uint8_t*>(all.data()), {world.size() * bytes}));
    bool all_here = true;
    for (std::size_t r = 0; r < all.size(); ++r) {
      const bool here = all[r].machine == mine.machine && all[r].endpoints[0].port != 0;
      all_here &= here;
      peers[r].host = all[r].host;
      for (std::size_t i = here ? 0 : 1; i < (here ? 1 : PeerInfo::max_endpoints); ++i)
        if (const auto [address, port] = all[r].endpoints[i]; port != 0)
          peers[r].endpoints.push_back({address, static_cast<std::uint16_t>(port), -1});
    }
    if (all_here) {
      for (std::size_t i = 1; i < sockets_.size(); ++i) close(sockets_[i].socket);
      sockets_.resize(1);
    }
  }
  const std::lock_guard lock(mutex_);
  rank_ = world.rank();
  key_ = key;
  asked_ = ranks_to_ask(rank_, world.size());
  peers_ = std::move(peers);
  set_limits(limits);
  eventfd_write(wake_fd_, 1);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<pollfd> events{{wake_fd_, POLLIN, 0}};
    if (peers_.size() > 1)
      for (const Endpoint& own : sockets_) events.push_back({own.socket, POLLIN, 0});
    const auto interval = std::chrono::ceil<std::chrono::milliseconds>(poll_interval_).count();
    lock.unlock();
    poll(events.data(), events.size(), static_cast<int>(interval));
    lock.lock();
    eventfd_t count = 0;
    eventfd_read(wake_fd_, &count);
    const Clock::time_point now = Clock::now();
    if (now - last_check_ > shorter_limit(limits_) / 2) resumed_at_ = now;
    for (std::size_t i = 1; i < events.size(); ++i) read_heartbeats(events[i].fd);
    if (now - last_check_ < poll_interval_) continue;
    check();
    last_check_ = now;
  }
}

double Watchdog::idle(const BlockedOn& block) const {
  if (!block.operation) return 0;
  return std::chrono::duration<double>(Clock::now() - std::max(block.since, resumed_at_)).count();
}

// Reads a limited number of datagrams, so that a flood of them does not delay check().
void Watchdog::read_heartbeats(int socket) {
  std::array<std::uint8_t, heartbeat_bytes + 1> bytes{};
  for (std::size_t i = 0; i < 64 + 4 * peers_.size(); ++i) {
    sockaddr_in from{};
    socklen_t length = sizeof from;
    const ssize_t size = recvfrom(socket, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (size < 0) return;
    const Seconds uptime = Clock::now() - started_;
    if (const auto heartbeat = unseal({bytes.data(), static_cast<std::size_t>(size)}, key_, uptime.count()))
      handle(*heartbeat, {from.sin_addr.s_addr, from.sin_port, socket});
  }
}

void Watchdog::handle(const Heartbeat& heartbeat, const Endpoint& from) {
  // A datagram of this rank's own was sent back to it by another process.
  if (heartbeat.from < 0 || heartbeat.from >= static_cast<std::int32_t>(peers_.size()) || heartbeat.from == rank_)
    return;
  Peer& peer = peers_[heartbeat.from];
  const std::uint64_t sequence = heartbeat.sequence;
  if (heartbeat.is_question) {
    if (sequence < peer.last_question) return;  // a replay; equal numbers come once to each address
    peer.last_question = sequence;
    return send(seal(own_state(sequence), key_), from);
  }
  // An answer counts from the time of its question, also if it is late or a duplicate.
  if (sequence == 0 || sequence > num_questions_ || sequence + question_times_.size() <= num_questions_) return;
  const Clock::time_point asked = question_times_[sequence % question_times_.size()];
  peer.last_alive = std::max(peer.last_alive, asked);
  peer.last_progress =
      std::max(peer.last_progress, asked - std::chrono::duration_cast<Clock::duration>(Seconds(heartbeat.idle)));
  const auto found = asked - std::chrono::duration_cast<Clock::duration>(Seconds(heartbeat.silent_age));
  if (const int silent = heartbeat.silent_rank;
      silent >= 0 && silent < static_cast<int>(peers_.size()) && silent != rank_ && found > silent_since_) {
    silent_rank_ = silent;
    silent_since_ = found;
  }
  if (sequence < peer.last_answer) return;
  peer.last_answer = sequence;
  peer.state = heartbeat.state;
}

// Errors are ignored: a lost datagram is not answered.
void Watchdog::send(const HeartbeatDatagram& datagram, const Endpoint& to) const {
  const sockaddr_in name = socket_address(to.address, to.port);
  static_cast<void>(
      sendto(to.socket, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&name), sizeof name));
}

// Progress of which the asked ranks knew counts too, so that news travels over several of them.
Watchdog::Clock::time_point Watchdog::latest_progress() const {
  Clock::time_point latest{};
  for (const Peer& peer : peers_) latest = std::max(latest, peer.last_progress);
  return latest;
}

// Returns the asked ranks that do not answer, and the one that another rank has named.
std::vector<int> Watchdog::silent_ranks() const {
  std::vector<int> silent;
  for (const int r : asked_)
    if (!is_responsive(peers_[r])) silent.push_back(r);
  if (silent_rank_ >= 0 && Clock::now() - silent_since_ < limits_.hang / 2 &&
      std::ranges::find(asked_, silent_rank_) == asked_.end())
    silent.push_back(silent_rank_);
  return silent;
}

Heartbeat Watchdog::own_state(std::uint64_t sequence) const {
  const BlockedOn block = context_.blocked.read();
  const Clock::time_point now = Clock::now();
  const double own = idle(block);
  Heartbeat state{rank_, 0, sequence, std::min(own, Seconds(now - latest_progress()).count())};
  describe_state(block, context_.phase.read(), own).copy(state.state, sizeof state.state - 1);
  // A rank that was asked for half the limit in vain, or one that another rank has named.
  const bool has_asked = asking_since_ != Clock::time_point{} && now - asking_since_ >= limits_.hang / 2;
  const std::vector<int> silent = has_asked ? silent_ranks() : std::vector<int>();
  if (!silent.empty()) {
    state.silent_rank = silent.front();
    if (silent.front() == silent_rank_) state.silent_age = Seconds(now - silent_since_).count();
  }
  return state;
}

void Watchdog::check() {
  check_local_work();
  const BlockedOn block = context_.blocked.read();
  const double waited = idle(block);
  if (waited < limits_.hang.count() / 4) {
    asking_since_ = {};
    return;
  }
  if (waited >= limits_.hang.count() && Clock::now() - latest_progress() >= limits_.hang) {
    const std::vector<int> silent = silent_ranks();
    const bool elsewhere = std::ranges::any_of(silent, [&](int r) { return peers_[r].host != peers_[rank_].host; });
    exit_process(report(block), elsewhere);
  }
  ask();
}

void Watchdog::ask() {
  const Clock::time_point now = Clock::now();
  if (asking_since_ == Clock::time_point{}) asking_since_ = now;
  const HeartbeatDatagram question = seal({rank_, 1, ++num_questions_, 0, {}}, key_);
  question_times_[num_questions_ % question_times_.size()] = now;
  for (const int r : asked_)
    for (Endpoint& to : peers_[r].endpoints) {
      if (to.socket < 0) to.socket = socket_to(to);
      send(question, to);
    }
}

void Watchdog::check_local_work() {
  const std::uint64_t progress_count = context_.blocked.version() + context_.phase.version() + context_.files.chunks;
  const Clock::time_point now = Clock::now();
  const bool unlimited = limits_.local == Seconds(0) || context_.unlimited_local_work > 0;
  if (unlimited || context_.blocked.read().operation || progress_count != progress_count_) local_since_ = now;
  progress_count_ = progress_count;
  if (unlimited || now - std::max(local_since_, resumed_at_) < limits_.local) return;
  exit_process(
      fmt::format("{} has computed, read or written{} for {} without waiting for another rank{}see what its "
                  "machine and its file systems say, and go on from the last checkpoint "
                  "(SWITCHYARD_LOCAL_TIMEOUT sets the seconds, 0: no limit)",
                  own_name(), context_.phase.read().describe(), format_seconds(limits_.local.count()), next_line),
      false);
}

std::string Watchdog::own_name() const {
  if (peers_.size() == 1) return "this process";
  if (!peers_.empty()) return fmt::format("rank {} on {}", rank_, peers_[rank_].host);
  const std::string host = host_name();
  // Launchers set the rank in the environment before MPI starts.
  if (const int rank = launched_rank().rank; rank >= 0) return fmt::format("rank {} on {}", rank, host);
  return fmt::format("process {} on {}", getpid(), host);
}

std::string Watchdog::report(const BlockedOn& block) const {
  const auto name = [&](int r) { return fmt::format("rank {} on {}", r, peers_[r].host); };
  std::string text = fmt::format("{} {}", own_name(), describe_state(block, context_.phase.read(), idle(block)));
  if (const DeviceCollective collective = context_.device_collective.read(); block.device && collective.name)
    text += fmt::format("; on the device is {} {}{}{}", collective.name, collective.peers, collective.phase.describe(),
                        format_rows(collective.rows));
  // Silent ranks come first: they may be the reason why the others wait.
  std::vector<std::string> silent, waiting;
  const std::vector<int> silent_now = silent_ranks();
  for (const int r : silent_now)
    silent.push_back(name(r) + " does not answer: it was stopped or killed, or its machine is out of reach");
  for (const int r : asked_)
    if (std::ranges::find(silent_now, r) == silent_now.end()) waiting.push_back(name(r) + " " + peers_[r].state);
  for (const auto& lines : {silent, waiting}) {
    for (std::size_t i = 0; i < std::min(lines.size(), max_listed); ++i) text += next_line + lines[i];
    if (lines.size() > max_listed) text += fmt::format("{}and {} more ranks", next_line, lines.size() - max_listed);
  }
  if (peers_.empty())
    return text + fmt::format(
                      "{}a rank was stopped or has ended, or its machine is out of reach: see what the machines say, "
                      "and start again (SWITCHYARD_TIMEOUT sets the seconds)",
                      next_line);
  return text + fmt::format(
                    "{}no rank has made progress for {}: see what the machines say, and go on from the last checkpoint "
                    "(SWITCHYARD_TIMEOUT sets the seconds)",
                    next_line, format_seconds(limits_.hang.count()));
}

}  // namespace sy
