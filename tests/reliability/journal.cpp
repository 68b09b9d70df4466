#include "tests/reliability/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/json_journal.h"

namespace sy::campaign {

std::vector<Batch> read_journal(const fs::path& path) {
  std::vector<Batch> journal;
  read_json_journal(path, [&](const Json& json) {
    Batch batch{json.at("row").get<std::string>(), json.at("first").get<Index>(), json.at("trials").get<Index>(),
                json.at("points").get<Index>()};
    for (std::size_t i = 0; i < num_outcomes; ++i) batch.outcomes[i] = json.at(outcome_names[i]).get<Index>();
    batch.seconds = json.at("seconds").get<double>();
    batch.commit = json.at("commit").get<std::string>();
    batch.date = json.at("date").get<std::string>();
    if (std::accumulate(batch.outcomes.begin(), batch.outcomes.end(), Index{0}) != batch.trials)
      bad_input("the outcomes do not sum to the trials");
    journal.push_back(std::move(batch));
  });
  return journal;
}

void add_to_journal(const fs::path& path, const Batch& batch) {
  Json json = {{"row", batch.row}, {"first", batch.first}, {"trials", batch.trials}, {"points", batch.points}};
  for (std::size_t i = 0; i < num_outcomes; ++i) json[outcome_names[i]] = batch.outcomes[i];
  json["seconds"] = std::round(batch.seconds * 10) / 10;
  json["commit"] = batch.commit;
  json["date"] = batch.date;
  append_to_journal(path, json);
}

Index next_trial(const std::vector<Batch>& journal, const std::string& row) {
  Index next = 0;
  for (const Batch& batch : journal)
    if (batch.row == row) next = std::max(next, batch.first + batch.trials);
  return next;
}

std::string summary(const std::vector<Batch>& journal) {
  std::string text =
      "| row | fault | trials | least | survived | reported | silently wrong | hung | crashed | unclear | trials/s |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  Batch total;
  for (const RowEntry& row : rows()) {
    Batch sum;
    for (const Batch& batch : journal) {
      if (batch.row != row.name) continue;
      sum.trials += batch.trials;
      sum.seconds += batch.seconds;
      sum.points = batch.points;  // of the last commit
      for (std::size_t i = 0; i < num_outcomes; ++i) sum.outcomes[i] += batch.outcomes[i];
    }
    text += fmt::format("| `{}` | {} | {} | {} |", row.name, row.fault, sum.trials, std::max(row.least, sum.points));
    for (const Index n : sum.outcomes) text += fmt::format(" {} |", n);
    text += sum.seconds > 0 ? fmt::format(" {:.1f} |\n", static_cast<double>(sum.trials) / sum.seconds) : " |\n";
    total.trials += sum.trials;
    for (std::size_t i = 0; i < num_outcomes; ++i) total.outcomes[i] += sum.outcomes[i];
  }
  text += fmt::format("| all | | {} | |", total.trials);
  for (const Index n : total.outcomes) text += fmt::format(" {} |", n);
  return text + " |\n";
}

}  // namespace sy::campaign
