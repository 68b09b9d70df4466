// A training on the data of two_domains.h, by one rank or by several.
#pragma once

#include <string>
#include <vector>

#include "src/train/trainer.h"
#include "tests/src/two_domains.h"

namespace sy::test {

struct TwoDomainTraining {
  // text: of the configuration; settings: replace some of its values
  TwoDomainTraining(Comm& comm, const char* text, const std::vector<std::string>& settings)
      : config(parse_config(text, "test", settings)),
        dataset(make_dataset(folder)),
        samples(training_samples(dataset, config)),
        engine(config, dataset.vocab(), make_cpu(), make_mesh(comm, config.layout(comm.size())), true),
        trainer(initialized(engine, config), samples) {}

  TempFolder folder;
  Config config;
  Dataset dataset;
  SampleStream samples;
  Engine engine;
  Trainer trainer;

 private:
  static Engine& initialized(Engine& engine, const Config& config) {
    engine.store().initialize(config.train.seed);
    return engine;
  }
};

}  // namespace sy::test
