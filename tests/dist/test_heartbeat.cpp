#include "dist/heartbeat.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "dist/watchdog.h"

namespace sy {
namespace {

using namespace std::chrono_literals;

HeartbeatKey key_of(std::uint8_t first) {
  HeartbeatKey key{};
  key[0] = first;
  return key;
}

TEST(Heartbeat, SurvivesARoundTrip) {
  Heartbeat sent{3, 1, 7, 2.5, "computes"};
  const auto read = unseal(seal(sent, key_of(1)), key_of(1), 10);
  ASSERT_TRUE(read);
  EXPECT_EQ(std::memcmp(&*read, &sent, sizeof sent), 0);
  EXPECT_NE(random_heartbeat_key(), random_heartbeat_key());
}

TEST(Heartbeat, IsRejectedIfChangedOrForged) {
  const HeartbeatDatagram sealed = seal({3, 1, 7, 2.5, "computes"}, key_of(1));
  EXPECT_FALSE(unseal(sealed, key_of(2), 10));
  EXPECT_FALSE(unseal(std::span(sealed).first(sealed.size() - 1), key_of(1), 10));
  EXPECT_FALSE(unseal({}, key_of(1), 10));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    HeartbeatDatagram changed = sealed;
    changed[i] ^= 1;
    EXPECT_FALSE(unseal(changed, key_of(1), 10)) << i;
  }
}

TEST(Heartbeat, ClampsIdleTimeToTheRun) {
  const auto idle = [](double seconds) {
    return unseal(seal({0, 0, 1, seconds, {}}, key_of(1)), key_of(1), 10).value_or(Heartbeat{0, 0, 0, -1, {}}).idle;
  };
  EXPECT_EQ(idle(-1e9), 0);
  EXPECT_EQ(idle(4), 4);
  EXPECT_EQ(idle(1e300), 10);
  EXPECT_EQ(idle(std::nan("")), -1);
  EXPECT_EQ(idle(-HUGE_VAL), -1);
}

// The second of two ranks, as the first rank's watchdog sees it: a socket with scripted answers.
class SecondRank final : public Comm {
 public:
  SecondRank() : Comm(std::make_shared<RankContext>()), socket_(new_socket()), attacker_(new_socket()) {}
  ~SecondRank() override {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    close(socket_);
    close(attacker_);
  }

  int size() const override { return 2; }
  int rank() const override { return 0; }

  // Answers `most` questions, and records the answers and the latest sequence number.
  void answer(int most) {
    thread_ = std::thread([this, most] {
      for (int remaining = most; !stopping_ && remaining > 0;) {
        sockaddr_in from{};
        const auto question = unseal(receive(socket_, &from, 50ms), key_, 1e9);
        if (!question || !question->is_question) continue;
        --remaining;
        const HeartbeatDatagram answer = seal({1, 0, question->sequence, 0, "computes"}, key_);
        sendto(socket_, answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&from), sizeof from);
        const std::lock_guard lock(mutex_);
        sequence_ = question->sequence;
        recorded_.push_back(answer);
      }
    });
  }
  int answered() {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(recorded_.size());
  }

  // Sends the datagrams of an attacker who has seen all datagrams, but not the key: answers that
  // are repeated, changed or forged.
  void attack() {
    std::vector<HeartbeatDatagram> all;
    std::uint64_t sequence = 0;
    {
      const std::lock_guard lock(mutex_);
      all = recorded_;
      sequence = sequence_;
    }
    if (all.empty()) return;
    for (const double idle : {0., -1e9, 1e6, std::nan(""), HUGE_VAL})
      for (std::uint64_t next = 0; next < 4; ++next)
        all.push_back(seal({1, 0, sequence + next, idle, "is fine"}, key_of(9)));
    HeartbeatDatagram changed = all.front();
    for (std::size_t i = 0; i < changed.size(); ++i) {
      changed[i] ^= 0x81;
      all.push_back(changed);
      changed[i] ^= 0x81;
    }
    Heartbeat next{};  // a recorded answer, renumbered as the answer to the next question
    std::memcpy(&next, changed.data(), sizeof next);
    next.sequence = sequence + 1;
    std::memcpy(changed.data(), &next, sizeof next);
    all.push_back(changed);
    for (const HeartbeatDatagram& datagram : all) send(datagram);
  }
  void attack_for(std::chrono::seconds time) {
    for (const auto begin = Watchdog::Clock::now(); Watchdog::Clock::now() - begin < time;) {
      attack();
      std::this_thread::sleep_for(20ms);
    }
  }
  void send(const HeartbeatDatagram& datagram) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = first_.endpoints[0].address;
    to.sin_port = static_cast<std::uint16_t>(first_.endpoints[0].port);
    sendto(attacker_, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  // Returns the next answer to a sent question; empty after 10 seconds.
  std::optional<Heartbeat> reply() {
    sockaddr_in from{};
    return unseal(receive(attacker_, &from, 10s), key_, 1e9);
  }

  const HeartbeatKey& key() const { return key_; }
  const PeerInfo& first() const { return first_; }

 private:
  static int new_socket() {
    const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(s, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    return s;
  }
  static std::vector<std::uint8_t> receive(int socket, sockaddr_in* from, std::chrono::milliseconds patience) {
    pollfd event{socket, POLLIN, 0};
    if (poll(&event, 1, static_cast<int>(patience.count())) != 1) return {};
    std::vector<std::uint8_t> bytes(1000);
    socklen_t length = sizeof *from;
    const ssize_t size = recvfrom(socket, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(from), &length);
    bytes.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return bytes;
  }

  std::unique_ptr<Comm> do_split(const std::function<int(int)>&) override { return nullptr; }
  void do_barrier() override {}
  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint) override {
    std::memcpy(key_.data(), buffers[0].x.bytes(), key_.size());
    return {};
  }
  void do_all_reduce(View, Reduce) override {}
  Work do_reduce(std::span<const RootedBuffer>, ComputePoint) override { return {}; }
  void do_reduce_scatter(ConstView, View, View) override {}
  void do_all_gather(ConstView in, View out) override {
    std::memcpy(&first_, in.bytes(), sizeof first_);
    PeerInfo second = first_;
    std::memcpy(second.host, "second", 7);
    sockaddr_in name{};
    socklen_t length = sizeof name;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&name), &length);
    second.endpoints[0] = {name.sin_addr.s_addr, name.sin_port};
    std::memcpy(out.bytes(), &first_, sizeof first_);
    std::memcpy(out.bytes() + sizeof first_, &second, sizeof second);
  }
  std::vector<std::string> do_gather(std::string_view, int) override { return {}; }
  Work do_all_to_all_v(std::span<const SendReceive>, std::span<const Index>, std::span<const Index>) override {
    return {};
  }

  int socket_, attacker_;
  HeartbeatKey key_{};
  PeerInfo first_{};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::vector<HeartbeatDatagram> recorded_;
  std::uint64_t sequence_ = 0;
  std::thread thread_;
};

// Returns the local addresses of the UDP sockets with this port, as /proc/net/udp shows them.
std::vector<std::string> addresses_of(std::uint32_t port) {
  std::vector<std::string> found;
  std::ifstream lines("/proc/self/net/udp");
  for (std::string line, slot, local; std::getline(lines, line);) {
    std::istringstream(line) >> slot >> local;
    if (local.ends_with(fmt::format(":{:04X}", ntohs(static_cast<std::uint16_t>(port)))))
      found.push_back(local.substr(0, 8));
  }
  return found;
}

TEST(WatchdogHeartbeats, UseOnlyLoopbackOnOneMachine) {
  SecondRank second;
  Watchdog watchdog(second.rank_context(), {});
  watchdog.rendezvous(second, {});
  const auto& endpoints = second.first().endpoints;
  EXPECT_EQ(addresses_of(endpoints[0].port), std::vector<std::string>{fmt::format("{:08X}", htonl(INADDR_LOOPBACK))});
  for (std::size_t i = 1; i < PeerInfo::max_endpoints; ++i)
    for (const std::string& address : addresses_of(endpoints[i].port))
      EXPECT_NE(address, fmt::format("{:08X}", endpoints[i].address));
}

TEST(WatchdogHeartbeats, IgnoreOldRequests) {
  SecondRank second;
  Watchdog watchdog(second.rank_context(), {});
  watchdog.rendezvous(second, {});
  for (const auto& [sequence, text] : {std::pair{5, "a"}, {4, "b"}, {6, "c"}})
    second.send(seal({1, 1, static_cast<std::uint64_t>(sequence), 0, {}}, second.key()));
  for (const std::uint64_t expected : {5, 6}) {
    const auto reply = second.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->sequence, expected);
    EXPECT_STREQ(reply->state, "computes");
  }
}

// Another process sends the rank's own question back.
TEST(WatchdogHeartbeats, IgnoreTheirOwnQuestions) {
  SecondRank second;
  Watchdog watchdog(second.rank_context(), {});
  watchdog.rendezvous(second, {});
  second.send(seal({0, 1, 7, 0, {}}, second.key()));
  second.send(seal({1, 1, 5, 0, {}}, second.key()));
  const auto reply = second.reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->sequence, 5u);
}

TEST(WatchdogHeartbeats, SurviveForgedDatagrams) {
  SecondRank second;
  Watchdog watchdog(second.rank_context(), {});
  watchdog.rendezvous(second, {2s, 0s});
  second.answer(1000000);
  const ScopedBlock block(second.rank_context().blocked, "a barrier");
  second.attack_for(5s);
  EXPECT_GT(second.answered(), 3);
}

// The second rank stops after two answers. If the watchdog does not end the child, it exits with 0.
TEST(WatchdogHeartbeatsDeathTest, EndTheJobDespiteForgedDatagrams) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        SecondRank second;
        Watchdog watchdog(second.rank_context(), {});
        watchdog.rendezvous(second, {1s, 0s});
        second.answer(2);
        const ScopedBlock block(second.rank_context().blocked, "a barrier");
        second.attack_for(20s);
        _exit(0);
      },
      testing::ExitedWithCode(1), "has waited .* for a barrier\n  rank 1 on second does not answer");
}

}  // namespace
}  // namespace sy
