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
#include <csignal>
#include <cstdlib>

#include "dist/runtime.h"
#include "kernels/philox.h"

namespace sy {
namespace {

constexpr std::size_t most_addresses = 6;

// What a rank tells the others of itself when they meet.
struct Card {
  char host[64];
  std::uint64_t port;
  std::uint32_t addresses[most_addresses];  // 0: none
};

// The addresses of this machine under which other machines may reach it.
std::vector<std::uint32_t> own_addresses() {
  std::vector<std::uint32_t> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* a = all; a && found.size() < most_addresses; a = a->ifa_next)
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

// The others of a report, one a line, beyond which they are counted.
constexpr std::size_t most_told = 8;

// The same in as few words.
std::string seconds_in_words(double seconds) {
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 1 : 0);
}

std::string in_words(const RowsMoved& rows) {
  return rows.expects < 0 ? "" : fmt::format(": it sends {} rows, and expects {}", rows.sends, rows.expects);
}

}  // namespace

struct Watchdog::Letter {
  std::uint64_t job;
  std::int32_t from, asks;  // asks: 1, or an answer: 0
  double idle;              // seconds without progress
  char words[200];          // what this rank waits for; cut off where it is longer
};

std::chrono::duration<double> hang_timeout() {
  const char* const given = std::getenv("SWITCHYARD_TIMEOUT");
  if (!given) return std::chrono::minutes(10);
  char* end = nullptr;
  const double seconds = std::strtod(given, &end);
  if (*given == 0 || *end != 0 || !(seconds > 0) || seconds > 1e9)
    bad_input("SWITCHYARD_TIMEOUT = '{}': give a number of seconds above 0, or unset it", given);
  return std::chrono::duration<double>(seconds);
}

std::string words_of(const Wait& wait, const Activity& doing, double seconds) {
  const std::string where = doing.where();
  if (!wait.what) return "computes" + where;
  std::string text = fmt::format("has waited {}{} for {}{}{}", seconds_in_words(seconds), where, wait.what,
                                 wait.whom[0] ? " " : "", wait.whom);
  return text + in_words(wait.rows);
}

Watchdog::Watchdog(Comm& world, std::chrono::duration<double> timeout)
    : timeout_(timeout),
      beat_(std::chrono::duration_cast<Clock::duration>(std::clamp<std::chrono::duration<double>>(
          timeout / 8, std::chrono::milliseconds(5), std::chrono::seconds(10)))),
      rank_(world.rank()),
      wake_(eventfd(0, EFD_CLOEXEC)),
      peers_(static_cast<std::size_t>(world.size())),
      looked_(Clock::now()) {
  if (world.size() > 1) {
    open_socket();
    meet(world);
  }
  // Signals are the other thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  ends_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
  close(wake_);
  if (socket_ >= 0) close(socket_);
}

// Without one, nobody is asked.
void Watchdog::open_socket() {
  socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in own = socket_address(INADDR_ANY, 0);
  socklen_t length = sizeof own;
  if (socket_ >= 0 && bind(socket_, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0 &&
      getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &length) == 0)
    port_ = own.sin_port;
}

void Watchdog::meet(Comm& world) {
  auto job = static_cast<Index>(hash_name(fmt::format("{} {}", getpid(), Clock::now().time_since_epoch().count())));
  world.broadcast(view_of(&job, {1}), 0);
  job_ = static_cast<std::uint64_t>(job);

  Card mine{};
  gethostname(mine.host, sizeof mine.host - 1);
  mine.port = port_;
  std::ranges::copy(own_addresses(), mine.addresses);
  std::vector<Card> all(peers_.size());
  const auto bytes = static_cast<Index>(sizeof(Card));
  world.all_gather(view_of(reinterpret_cast<std::uint8_t*>(&mine), {bytes}),
                   view_of(reinterpret_cast<std::uint8_t*>(all.data()), {world.size() * bytes}));
  for (std::size_t r = 0; r < all.size(); ++r) {
    Peer& peer = peers_[r];
    peer.host = all[r].host;
    peer.port = static_cast<std::uint16_t>(all[r].port);
    std::ranges::copy_if(all[r].addresses, std::back_inserter(peer.addresses), [](std::uint32_t a) { return a != 0; });
    if (peer.host == mine.host) peer.addresses.push_back(htonl(INADDR_LOOPBACK));
  }
}

void Watchdog::watch() {
  const int milliseconds = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(beat_).count());
  while (!ends_) {
    pollfd events[] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
    poll(events, 2, milliseconds);
    const Clock::time_point now = Clock::now();
    if (now - looked_ > timeout_ / 2) awake_since_ = now;
    read_letters();
    if (now - looked_ < beat_) continue;
    look();
    looked_ = now;
  }
}

double Watchdog::idle(const Wait& wait) const {
  if (!wait.what) return 0;
  return std::chrono::duration<double>(Clock::now() - std::max(wait.since, awake_since_)).count();
}

void Watchdog::read_letters() {
  Letter letter{};
  sockaddr_in from{};
  socklen_t length = sizeof from;
  while (socket_ >= 0 && recvfrom(socket_, &letter, sizeof letter, 0, reinterpret_cast<sockaddr*>(&from), &length) ==
                             static_cast<ssize_t>(sizeof letter)) {
    length = sizeof from;
    if (letter.job != job_ || letter.from < 0 || letter.from >= static_cast<std::int32_t>(peers_.size())) continue;
    if (letter.asks) {
      const Wait wait = published_wait.read();
      Letter answer{job_, rank_, 0, idle(wait), {}};
      words_of(wait, published_activity.read(), answer.idle).copy(answer.words, sizeof answer.words - 1);
      send(answer, from.sin_addr.s_addr, from.sin_port);
      continue;
    }
    Peer& peer = peers_[static_cast<std::size_t>(letter.from)];
    letter.words[sizeof letter.words - 1] = 0;
    peer.heard = Clock::now();
    peer.progress =
        peer.heard - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(letter.idle));
    peer.words = letter.words;
  }
}

// Where it gets lost, it is not answered.
void Watchdog::send(const Letter& letter, std::uint32_t address, std::uint16_t port) const {
  const sockaddr_in to = socket_address(address, port);
  static_cast<void>(sendto(socket_, &letter, sizeof letter, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to));
}

void Watchdog::look() {
  const Wait wait = published_wait.read();
  const double waited = idle(wait);
  if (waited < timeout_.count() / 4) return;
  Clock::time_point progress{};
  for (const Peer& peer : peers_) progress = std::max(progress, peer.progress);
  if (waited >= timeout_.count() && Clock::now() - progress >= timeout_) {
    const std::string& here = peers_[static_cast<std::size_t>(rank_)].host;
    end_process(report(wait),
                std::ranges::any_of(peers_, [&](const Peer& p) { return p.host != here && !answers(p); }));
  }
  const Letter question{job_, rank_, 1, 0, {}};
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (static_cast<int>(r) != rank_)
      for (const std::uint32_t address : peers_[r].addresses) send(question, address, peers_[r].port);
}

std::string Watchdog::report(const Wait& wait) const {
  const auto name = [&](std::size_t r) { return fmt::format("rank {} on {}", r, peers_[r].host); };
  std::string text = fmt::format("{} {}", peers_.size() > 1 ? name(static_cast<std::size_t>(rank_)) : "this process",
                                 words_of(wait, published_activity.read(), idle(wait)));
  if (const OnDevice given = on_device.read(); wait.device && given.what)
    text += fmt::format("; on the device is {} {}{}{}", given.what, given.whom, given.activity.where(),
                        in_words(given.rows));
  // Those that say nothing first: they may be why the others wait.
  std::vector<std::string> silent, waiting;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    if (!answers(peers_[r]))
      silent.push_back(name(r) + " does not answer: it was stopped or killed, or its machine is out of reach");
    else
      waiting.push_back(name(r) + " " + peers_[r].words);
  }
  for (const auto& lines : {silent, waiting}) {
    for (std::size_t i = 0; i < std::min(lines.size(), most_told); ++i) text += next_line + lines[i];
    if (lines.size() > most_told) text += fmt::format("{}and {} more ranks", next_line, lines.size() - most_told);
  }
  return text + fmt::format(
                    "{}no rank has made progress for {}: see what the machines say, and go on from the last checkpoint "
                    "(SWITCHYARD_TIMEOUT sets the seconds)",
                    next_line, seconds_in_words(timeout_.count()));
}

}  // namespace sy
