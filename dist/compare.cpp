#include "dist/compare.h"

#include <algorithm>
#include <cstring>

#include "dist/activity.h"

namespace sy {

std::string difference(std::span<const Call> calls, std::span<const Index> rows) {
  constexpr const char* advice = "every rank must make the same calls in the same order: see what this depends on";
  const Call& first = calls.front();
  for (const Call& call : calls)
    if (std::strcmp(call.words, first.words) != 0)
      return fmt::format("rank {} is about to do {}, and rank {} {}: {}", first.rank, first.words, call.rank,
                         call.words, advice);
  const std::size_t P = calls.size();
  for (std::size_t from = 0; from < P; ++from)
    for (std::size_t to = 0; to < P; ++to) {
      const Index sent = rows[2 * P * from + to], expected = rows[2 * P * to + P + from];
      if (sent != expected)
        return fmt::format("rank {} is about to send {} rows to rank {}, which expects {}, in {}: {}", calls[from].rank,
                           sent, calls[to].rank, expected, first.words, advice);
    }
  return "";
}

void compare(const Comm& comm, const std::string& what, std::span<const Index> send, std::span<const Index> receive) {
  constexpr std::size_t call_words = sizeof(Call) / sizeof(Index);
  static_assert(sizeof(Call) % sizeof(Index) == 0);
  const auto P = static_cast<std::size_t>(comm.size());
  Call call{comparing.rank, {}};
  Activity here = activity;
  here.step = 0;  // lasting() stores each text forever: the texts must repeat in every step
  const std::string words = what + here.where();
  words.copy(call.words, sizeof call.words - 1);

  const std::size_t length = call_words + 2 * P;
  std::vector<Index> mine(length), all(P * length);
  std::memcpy(mine.data(), &call, sizeof call);
  std::copy(send.begin(), send.end(), mine.begin() + call_words);
  std::copy(receive.begin(), receive.end(), mine.begin() + call_words + P);
  const Waiting waiting("others that do", lasting(words));
  if (!comm.tell(mine, all)) return;

  std::vector<Call> calls(P);
  std::vector<Index> rows;
  for (std::size_t r = 0; r < P; ++r) {
    const Index* const told = all.data() + r * length;
    std::memcpy(&calls[r], told, sizeof(Call));
    rows.insert(rows.end(), told + call_words, told + length);
  }
  if (const std::string problem = difference(calls, rows); !problem.empty()) fail("{}", problem);
}

}  // namespace sy
