#include "dist/fingerprints.h"

#include <algorithm>
#include <cstring>

namespace sy {

std::string first_difference(std::span<const CollectiveFingerprint> fingerprints, std::span<const Index> rows) {
  constexpr const char* advice = "every rank must make the same calls in the same order: see what this depends on";
  const CollectiveFingerprint& first = fingerprints.front();
  for (const CollectiveFingerprint& other : fingerprints)
    if (std::strcmp(other.text, first.text) != 0)
      return fmt::format("rank {} is about to do {}, and rank {} {}: {}", first.rank, first.text, other.rank,
                         other.text, advice);
  const std::size_t P = fingerprints.size();
  for (std::size_t from = 0; from < P; ++from)
    for (std::size_t to = 0; to < P; ++to) {
      const Index sent = rows[2 * P * from + to], expected = rows[2 * P * to + P + from];
      if (sent != expected)
        return fmt::format("rank {} is about to send {} rows to rank {}, which expects {}, in {}: {}",
                           fingerprints[from].rank, sent, fingerprints[to].rank, expected, first.text, advice);
    }
  return "";
}

void check_fingerprints(Comm& comm, const std::string& call, std::span<const Index> send,
                        std::span<const Index> receive) {
  constexpr std::size_t header_length = sizeof(CollectiveFingerprint) / sizeof(Index);
  static_assert(sizeof(CollectiveFingerprint) % sizeof(Index) == 0);
  RankContext& context = comm.rank_context();
  const auto P = static_cast<std::size_t>(comm.size());
  CollectiveFingerprint own{context.fingerprints.rank, {}};
  Phase phase = context.phase.current();
  phase.step = 0;  // intern() stores each text forever: the texts must repeat in every step
  const std::string text = call + phase.describe();
  text.copy(own.text, sizeof own.text - 1);

  const std::size_t length = header_length + 2 * P;
  std::vector<Index> mine(length), all(P * length);
  std::memcpy(mine.data(), &own, sizeof own);
  std::copy(send.begin(), send.end(), mine.begin() + header_length);
  std::copy(receive.begin(), receive.end(), mine.begin() + header_length + P);
  const ScopedBlock block(context.blocked, "others that do", intern(text));
  if (!comm.host_all_gather(mine, all)) return;

  std::vector<CollectiveFingerprint> fingerprints(P);
  std::vector<Index> rows;
  for (std::size_t r = 0; r < P; ++r) {
    const Index* const gathered = all.data() + r * length;
    std::memcpy(&fingerprints[r], gathered, sizeof(CollectiveFingerprint));
    rows.insert(rows.end(), gathered + header_length, gathered + length);
  }
  if (const std::string problem = first_difference(fingerprints, rows); !problem.empty()) fail("{}", problem);
}

}  // namespace sy
