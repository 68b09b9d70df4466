// Facts about a run's validations that decide which checkpoints stay and when training stops. Each
// checkpoint holds those up to its step, so that a resumed run decides as an uninterrupted one.
#pragma once

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

struct ValidationRecord {
  struct Entry {
    Index step;
    double loss;  // nats per token
    bool operator==(const Entry&) const = default;
  };
  double lowest = std::numeric_limits<double>::infinity();  // infinite before the first finite loss
  Index lowest_step = -1;                                   // -1 before the first finite loss
  Index since_lowest = 0;                                   // validations after lowest_step
  // Lowest losses whose checkpoints stay, in ascending order.
  std::vector<Entry> best;

  // Adds the loss after a step. Returns true if it is among the `keep_best` lowest.
  // A loss that equals an earlier one is not lower, and neither is one that is not finite.
  bool add(Index step, double loss, Index keep_best);
  // Removes the entries whose checkpoints are not among `steps`.
  void retain(const std::set<Index>& steps);
  bool empty() const { return lowest_step < 0 && since_lowest == 0; }
  bool operator==(const ValidationRecord&) const = default;
};

// Formats a record as JSON, for the /state group of a checkpoint.
std::string to_text(const ValidationRecord& record);
// Throws InputError if `text` is not such a record. where: the checkpoint, for the message.
ValidationRecord parse_validation_record(const std::string& text, const std::string& where);

}  // namespace sy
