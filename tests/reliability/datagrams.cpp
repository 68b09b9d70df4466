// Row `datagrams`: a rank that waits for another one receives wrong heartbeats (dist/heartbeat.h).
//
// The rank is a child process with a watchdog. This process is the other rank, which computes and
// answers, and the attacker. The attacker has seen all datagrams of the job.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>

#include "dist/watchdog.h"
#include "tests/forwarding_comm.h"
#include "tests/reliability/campaign.h"

namespace sy::campaign {
namespace {

constexpr Seconds hang{3};
constexpr double patience = 10;  // seconds until a question counts as not answered

// A UDP socket of the loopback interface.
class Socket {
 public:
  Socket() : file_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name = address_of(0);
    socklen_t length = sizeof name;
    if (::bind(file_, reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
        ::getsockname(file_, reinterpret_cast<sockaddr*>(&name), &length) != 0)
      fail("cannot open a socket");
    port_ = name.sin_port;
  }
  ~Socket() { ::close(file_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  std::uint16_t port() const { return port_; }  // in network byte order
  void send(std::uint16_t port, std::span<const std::uint8_t> bytes) const {
    const sockaddr_in to = address_of(port);
    static_cast<void>(
        ::sendto(file_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to));
  }
  // Returns the next datagram; empty if there is none in time.
  std::vector<std::uint8_t> receive(double seconds) const {
    pollfd event{file_, POLLIN, 0};
    if (::poll(&event, 1, static_cast<int>(seconds * 1000)) != 1) return {};
    std::vector<std::uint8_t> bytes(2 * heartbeat_bytes);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(::recv(file_, bytes.data(), bytes.size(), 0), 0)));
    return bytes;
  }

 private:
  static sockaddr_in address_of(std::uint16_t port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = port;
    return name;
  }
  int file_;
  std::uint16_t port_ = 0;
};

// Memory that the rank and this process share.
struct JobInfo {
  HeartbeatKey key;
  PeerInfo first;  // addresses of the rank
  std::uint16_t peer_port;
};

// The world of the rank, without MPI. It is rank 0 of two.
class TwoRanks final : public ForwardingComm {
 public:
  explicit TwoRanks(JobInfo& job) : ForwardingComm(make_comm_self()), job_(job) {}
  int size() const override { return 2; }

 private:
  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint) override {
    std::memcpy(job_.key.data(), buffers[0].x.bytes(), job_.key.size());
    return {};
  }
  void do_all_gather(ConstView in, View out) override {
    std::memcpy(&job_.first, in.bytes(), sizeof job_.first);
    PeerInfo second = job_.first;
    second.endpoints[0].port = job_.peer_port;
    std::memcpy(out.bytes(), &job_.first, sizeof second);
    std::memcpy(out.bytes() + sizeof second, &second, sizeof second);
  }
  JobInfo& job_;
};

[[noreturn]] void wait_for_ever(JobInfo& job) {
  TwoRanks world(job);
  Watchdog watchdog(world.rank_context(), {});
  watchdog.rendezvous(world, {hang, Seconds(0)});
  const ScopedBlock block(world.rank_context().blocked, "a barrier", "with rank 1");
  for (;;) ::pause();
}

class Datagrams final : public Row {
 public:
  Datagrams()
      : job_(*static_cast<JobInfo*>(
            ::mmap(nullptr, sizeof(JobInfo), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        errors_(::memfd_create("errors", MFD_CLOEXEC)) {
    start();
  }
  ~Datagrams() override { end(); }
  Index points() const override { return 0; }

  TrialResult run(Index trial) override {
    Draw draw("datagrams", trial);
    constexpr Index trials_of_a_job = 1000;
    if (trial % trials_of_a_job == trials_of_a_job - 1) return silent_peer(draw);
    std::string name;
    const std::vector<std::uint8_t> bytes = wrong_datagram(draw, name);
    TrialResult result{Outcome::survived, fmt::format("{} of {} bytes\n", name, bytes.size())};
    // An attacker may use the address of the other rank.
    (draw.below(2) == 0 ? attacker_ : peer_).send(rank_port(), bytes);
    if (const std::string why = question_fails(); !why.empty()) {
      result.details += why;
      result.outcome = end_of_rank();
      result.details += error_text();
      end();
      start();
    } else if (!attacker_.receive(0).empty()) {
      result.outcome = Outcome::wrong;
      result.details += "the rank answers the attacker";
    }
    return result;
  }

 private:
  std::uint16_t rank_port() const { return static_cast<std::uint16_t>(job_.first.endpoints[0].port); }

  void start() {
    job_ = {};
    job_.peer_port = peer_.port();
    if (::ftruncate(errors_, 0) != 0) fail("cannot clear the output of the rank");
    rank_ = ::fork();
    if (rank_ < 0) fail("cannot start a child process");
    if (rank_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(errors_, STDERR_FILENO);
      wait_for_ever(job_);
    }
    recorded_.clear();
    previous_question_.reset();
    last_question_ = last_heard_ = 0;
    // The rank asks after a quarter of its limit.
    const double begin = now();
    while (last_heard_ == 0 && now() - begin < patience) answer(peer_.receive(0.1));
    if (last_heard_ == 0) fail("the rank asks no question: {}", error_text());
    for (int i = 0; i < 3; ++i)
      if (const std::string why = question_fails(); !why.empty()) fail("{}", why);
  }
  void end() {
    ::kill(rank_, SIGKILL);
    ::waitpid(rank_, nullptr, 0);
    while (!peer_.receive(0).empty() || !attacker_.receive(0).empty()) continue;
  }
  std::string error_text() const {
    std::string text(4096, 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(::pread(errors_, text.data(), text.size(), 0), 0)));
    return text;
  }
  // Failure of a rank that does not answer: it has crashed, has ended itself, or hangs.
  Outcome end_of_rank() const {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(rank_), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid == 0 ? Outcome::hung : info.si_code == CLD_EXITED ? Outcome::wrong : Outcome::crashed;
  }

  void record(std::span<const std::uint8_t> bytes) {
    constexpr std::size_t most = 256;
    std::vector<std::uint8_t> copy(bytes.begin(), bytes.end());
    if (recorded_.size() < most)
      recorded_.push_back(std::move(copy));
    else
      recorded_[num_recorded_ % most] = std::move(copy);
    ++num_recorded_;
  }
  // Answers a datagram if it is a question of the rank. Returns it if it is an answer.
  std::optional<Heartbeat> answer(const std::vector<std::uint8_t>& bytes) {
    const auto heartbeat = unseal(bytes, job_.key, 1e9);
    if (!heartbeat) return {};
    record(bytes);
    if (!heartbeat->is_question) return heartbeat;
    last_heard_ = heartbeat->sequence;
    const HeartbeatDatagram mine = seal({1, 0, last_heard_, 0, "computes"}, job_.key);
    peer_.send(rank_port(), mine);
    record(mine);
    return {};
  }
  // Asks the rank for its state, as the other rank. Returns why its answer is wrong; empty if it is
  // right. All datagrams that were sent before have been read by the rank then.
  std::string question_fails() {
    const HeartbeatDatagram question = seal({1, 1, ++last_question_, 0, {}}, job_.key);
    peer_.send(rank_port(), question);
    for (const double begin = now(); now() - begin < patience;) {
      const auto state = answer(peer_.receive(0.2));
      if (!state) {
        if (end_of_rank() != Outcome::hung) return "the rank has ended\n";
        continue;
      }
      if (state->sequence != last_question_) return fmt::format("the rank answers question {}\n", state->sequence);
      if (state->from != 0 || !std::string_view(state->state).starts_with("has waited"))
        return fmt::format("the answer of the rank is '{}'\n", state->state);
      // The rank may answer its latest question again, so the attacker only has older ones.
      if (previous_question_) record(*previous_question_);
      previous_question_ = question;
      return "";
    }
    return "the rank does not answer\n";
  }

  // The other rank falls silent. The attacker goes on. The rank must report it in time.
  TrialResult silent_peer(Draw& draw) {
    TrialResult result{Outcome::reported, "the other rank falls silent\n"};
    const double begin = now();
    while (end_of_rank() == Outcome::hung && now() - begin < 3 * hang.count() + patience) {
      std::string name;
      for (int i = 0; i < 20; ++i) {
        const std::vector<std::uint8_t> bytes = unsealed_datagram(draw, draw.below(num_unsealed), name);
        (draw.below(2) == 0 ? attacker_ : peer_).send(rank_port(), bytes);
      }
      static_cast<void>(peer_.receive(0.02));
    }
    const Outcome end_of_job = end_of_rank();
    result.details += error_text();
    if (end_of_job != Outcome::wrong)
      result.outcome = end_of_job;
    else if (result.details.find("does not answer") == std::string::npos)
      result.outcome = Outcome::unclear;
    end();
    start();
    return result;
  }

  // ---- datagrams ----
  static constexpr Index num_unsealed = 6;
  // Datagrams of an attacker without the key, or one that has the key but wrong numbers.
  std::vector<std::uint8_t> wrong_datagram(Draw& draw, std::string& name) {
    const Index kind = draw.below(num_unsealed + 2);
    return kind < num_unsealed ? unsealed_datagram(draw, kind, name) : sealed_datagram(draw, name);
  }
  std::vector<std::uint8_t> unsealed_datagram(Draw& draw, Index kind, std::string& name) {
    constexpr const char* names[num_unsealed] = {"forged", "cut", "extended", "changed", "repeated", "random"};
    name = names[kind];
    const auto byte = [&] { return static_cast<std::uint8_t>(draw.below(256)); };
    std::vector<std::uint8_t> bytes = recorded_[static_cast<std::size_t>(draw.below(std::ssize(recorded_)))];
    switch (kind) {
      case 0: {  // signed with another key
        HeartbeatKey key = job_.key;
        key[static_cast<std::size_t>(draw.below(std::ssize(key)))] ^= static_cast<std::uint8_t>(1 + draw.below(255));
        const HeartbeatDatagram forged = seal(any_heartbeat(draw), key);
        return {forged.begin(), forged.end()};
      }
      case 1:
        bytes.resize(static_cast<std::size_t>(draw.below(std::ssize(bytes))));
        return bytes;
      case 2: {
        const Index more = draw.below(4) == 0 ? 1 + draw.below(60000) : 1 + draw.below(64);
        for (Index i = 0; i < more; ++i) bytes.push_back(byte());
        return bytes;
      }
      case 3: {
        const Index bit = draw.below(8 * std::ssize(bytes));
        bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::uint8_t>(1 << bit % 8);
        return bytes;
      }
      case 4:
        return bytes;
      default:
        bytes.resize(static_cast<std::size_t>(draw.below(2) == 0 ? Index{heartbeat_bytes} : draw.below(2000)));
        for (std::uint8_t& b : bytes) b = byte();
        return bytes;
    }
  }
  // A signed datagram that a sound rank would not send. It must not be answered.
  std::vector<std::uint8_t> sealed_datagram(Draw& draw, std::string& name) {
    name = "signed, with wrong numbers";
    Heartbeat heartbeat = any_heartbeat(draw);
    const bool knows_rank = heartbeat.from == 0 || heartbeat.from == 1;
    if (knows_rank && heartbeat.is_question) heartbeat.sequence = static_cast<std::uint64_t>(draw.below(2));
    const HeartbeatDatagram sealed = seal(heartbeat, job_.key);
    return {sealed.begin(), sealed.end()};
  }
  Heartbeat any_heartbeat(Draw& draw) const {
    using Limits = std::numeric_limits<double>;
    constexpr std::int32_t ranks[] = {
        1, 1, 0, 2, -1, 1 << 20, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};
    constexpr std::int32_t kinds[] = {0, 0, 1, 2, -1};
    constexpr double times[] = {0,
                                -1,
                                1e-300,
                                3,
                                1e9,
                                1e300,
                                -1e300,
                                Limits::infinity(),
                                -Limits::infinity(),
                                Limits::quiet_NaN(),
                                Limits::max(),
                                Limits::denorm_min()};
    const std::uint64_t numbers[] = {0, 1, last_heard_, last_heard_ + 1, last_heard_ + (1 << 20), ~std::uint64_t{0}};
    Heartbeat heartbeat{ranks[draw.below(std::ssize(ranks))], kinds[draw.below(std::ssize(kinds))],
                        numbers[draw.below(std::ssize(numbers))], times[draw.below(std::ssize(times))]};
    for (char& c : heartbeat.state) c = static_cast<char>(draw.below(256));
    heartbeat.silent_rank = ranks[draw.below(std::ssize(ranks))];
    heartbeat.reserved = static_cast<std::int32_t>(draw.below(1 << 30));
    heartbeat.silent_age = times[draw.below(std::ssize(times))];
    return heartbeat;
  }

  JobInfo& job_;
  Socket peer_, attacker_;
  int errors_;
  pid_t rank_ = -1;
  std::vector<std::vector<std::uint8_t>> recorded_;  // the latest datagrams of the job
  std::size_t num_recorded_ = 0;
  std::optional<HeartbeatDatagram> previous_question_;  // of this process
  std::uint64_t last_question_ = 0;                     // of this process
  std::uint64_t last_heard_ = 0;                        // of the rank
};

}  // namespace

std::unique_ptr<Row> make_datagrams() {
  return std::make_unique<Datagrams>();
}

}  // namespace sy::campaign
