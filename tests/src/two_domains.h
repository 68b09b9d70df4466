// A data set for models that train on several ranks.
#pragma once

#include <string>

#include "kernels/philox.h"
#include "src/data/dataset.h"
#include "tests/src/temp_folder.h"

namespace sy::test {

// Writes a data set to the rank's own disk: two different domains of noisy repeated words, which a
// model can learn.
inline Dataset make_dataset(const TempFolder& folder) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = 37;
  for (int d = 0; d < 2; ++d) {
    const RandomStream random(9, "domain " + std::to_string(d));
    const std::string name = "domain" + std::to_string(d);
    Index tokens = 0;
    for (const char* split : {".train", ".valid"}) {
      IndexedWriter writer(folder.path() / (name + split), description.vocab);
      for (int document = 0; document < 30; ++document) {
        std::vector<std::int32_t> ids;
        for (int i = 0; i < 71; ++i, ++tokens)
          ids.push_back(static_cast<std::int32_t>(random.bits(tokens) % 4 == 0
                                                      ? random.bits(tokens + 100000) % 37
                                                      : (i * (d + 2) + document) % 17 + d * 20));
        writer.add(ids);
      }
      writer.finish();
    }
    description.domains.push_back({name, 30, 30 * 71, 30, 30 * 71});
  }
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

}  // namespace sy::test
