// Short trainings of a tiny model: each rank alone, and all ranks together, must agree.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "dist/errors.h"
#include "dist/machine.h"
#include "kernels/philox.h"
#include "src/config/layout.h"
#include "src/data/dataset.h"
#include "src/doctor/probes.h"
#include "src/io/checkpoint.h"
#include "src/selftest/checks.h"
#include "src/system/files.h"
#include "src/train/trainer.h"

namespace sy::selftest {

namespace fs = std::filesystem;

namespace {

constexpr Index steps = 20, saved_step = 10, vocab = 37;

// With this seed no two router scores tie on 1, 2, 3, 4, 6 and 8 ranks.
constexpr const char* model = R"(
[model]
layers = 2
d_model = 48
heads = 12
kv_heads = 6
seq_len = 24
d_ff = 96
[moe]
top_k = 2
first_dense = 1
d_ff = 24
capacity_factor = 1.25
aux_loss = 0.02
z_loss = 0.01
shared_experts = 1
[train]
steps = 20
lr = 5e-3
min_lr = 1e-3
warmup = 4
seed = 2
)";

// Allowed differences between one rank on the CPU and a layout on a device
// (docs/design/determinism.md).
struct Bounds {
  double loss;  // relative
  // Two scores of a router that are closer tie: both choices are right, and the losses differ from
  // then on, by `after_tie` at most.
  double tie;
  double after_tie = 1e-2;
};
Bounds bounds_of(const std::string& device) {
  return device == "cuda" ? Bounds{.loss = 1e-4, .tie = 1e-5} : Bounds{.loss = 1e-5, .tie = 3e-6};
}

// Number of experts, from 8 to 16, with the most ways to divide them among the ranks.
Index experts_for(int ranks) {
  Index best = 8;
  for (Index e = 9; e <= 16; ++e)
    if (std::gcd(e, Index{ranks}) > std::gcd(best, Index{ranks})) best = e;
  return best;
}

Config config_for(int ranks) {
  const Index batch = Index{ranks} * ceil_div(8, Index{ranks});
  return parse_config(model, "the self-test",
                      {fmt::format("--moe.experts={}", experts_for(ranks)),
                       fmt::format("--train.global_batch={}", batch), "--train.micro_batch=1"});
}

// Layouts to compare with one rank: data parallelism alone, expert parallelism, and these with
// tensor and expert-tensor parallelism, if the number of ranks has such factors.
std::vector<Layout> layouts_for(const Config& config, int ranks) {
  const auto shared = [](Index a, Index b) { return static_cast<int>(std::gcd(a, b)); };
  const int ep = shared(ranks, config.moe.experts), tp = ranks % 2 == 0 ? 2 : shared(ranks, 3), etp = tp;
  std::vector<Layout> layouts;
  for (const Layout& l : {Layout{ranks, 1, 1, 1}, Layout{ranks, 1, ep, 1}, Layout{ranks, tp, ep, 1},
                          Layout{ranks, tp, shared(ranks / etp, config.moe.experts), etp}})
    if (std::find(layouts.begin(), layouts.end(), l) == layouts.end() && layout_problem(config, l).empty())
      layouts.push_back(l);
  return layouts;
}

// Writes a data set of noisy repetitions, which a model can learn.
void write_data(const fs::path& folder) {
  fs::create_directories(folder);
  constexpr Index documents = 60, length = 71;
  const RandomStream random(9, "selftest");
  IndexedWriter writer(folder / "text.train", vocab);
  for (Index d = 0; d < documents; ++d) {
    std::vector<std::int32_t> ids;
    for (Index i = 0; i < length; ++i) {
      const auto at = static_cast<std::uint64_t>(2 * (d * length + i));
      const bool is_noise = random.bits(at) % 4 == 0;
      ids.push_back(static_cast<std::int32_t>(is_noise ? random.bits(at + 1) % vocab
                                                       : static_cast<std::uint64_t>((i * (d % 2 + 2) + d) % 17)));
    }
    writer.add(ids);
  }
  writer.finish();
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = vocab;
  Domain& domain = description.domains.emplace_back();
  domain.name = "text";
  domain.train_documents = documents;
  domain.train_tokens = documents * length;
  write_file(folder / "dataset.ini", to_ini(description));
}

// Smallest distance of the last chosen score of a token and the best other one, over all tokens.
double smallest_gap(Device& device, const RoutingView& routing, Index top_k) {
  const Index experts = routing.logits.dim(1);
  std::vector<float> logits(static_cast<std::size_t>(routing.logits.elements()));
  device.to_host(routing.logits, logits.data());
  double gap = std::numeric_limits<double>::infinity();
  for (auto token = logits.begin(); token != logits.end(); token += experts) {
    std::partial_sort(token, token + top_k + 1, token + experts, std::greater<>());
    gap = std::min(gap, static_cast<double>(token[top_k - 1]) - static_cast<double>(token[top_k]));
  }
  return gap;
}

// A training in memory.
class Training {
 public:
  // Collective over `comm`.
  Training(Comm& comm, const Config& config, std::unique_ptr<Device> device, const Dataset& data)
      : engine_(config, data.vocab(), std::move(device), make_mesh(comm, config.layout(comm.size())), true),
        samples_(data, config.model.seq_len, config.train.seed, config.data),
        trainer_(engine_, samples_) {
    engine_.store().initialize(config.train.seed);
  }
  // Trains up to this number of steps. progress: called after each.
  void train_to(Index step, const std::function<void(Index)>& progress) {
    while (trainer_.steps_done() < step) {
      losses.push_back(trainer_.step().metrics.loss);
      progress(trainer_.steps_done());
    }
    engine_.store().finish_all_gather();
  }
  // Records the first step with a tie. Two scores tie if they are less than `tie` apart.
  void watch_ties(double tie) {
    engine_.set_routing_hook([this, tie](const RoutingView& routing) {
      if (first_tie == steps && smallest_gap(engine_.device(), routing, engine_.config().moe.top_k) < tie)
        first_tie = trainer_.steps_done();
    });
  }
  void save(Comm& comm, const fs::path& folder) {
    TrainState state;
    state.step = trainer_.steps_done();
    state.samples = trainer_.samples_done();
    state.tokens = trainer_.tokens_done();
    state.seed = engine_.config().train.seed;
    state.config = to_ini(engine_.config());
    state.vocab = engine_.vocab();
    save_checkpoint(comm, folder, state, engine_.store(), {});
  }
  void load(const fs::path& checkpoint) {
    load_checkpoint(checkpoint, engine_.store());
    const TrainState state = read_state(checkpoint);
    trainer_.set_progress(state.step, state.samples, state.tokens);
  }
  // Returns this rank's boxes of the weights.
  std::map<std::string, std::vector<float>> weights() {
    std::map<std::string, std::vector<float>> all;
    for (const ParamSpec& spec : engine_.store().specs()) {
      const View w = engine_.store().get(spec.name).weight;
      std::vector<float>& values = all[spec.name];
      values.resize(static_cast<std::size_t>(w.elements()));
      engine_.device().to_host(w, values.data());
    }
    return all;
  }

  std::vector<double> losses;  // of the steps since construction
  Index first_tie = steps;     // index of the first step with a tie; `steps` if there is none

 private:
  Engine engine_;
  SampleStream samples_;
  Trainer trainer_;
};

// Compares losses with those of one rank. Returns the largest relative difference before a tie.
double compare(const std::vector<double>& losses, Index first, const Training& one, const Bounds& bounds,
               Finding& finding) {
  double most = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::size_t step = static_cast<std::size_t>(first) + i;
    const double want = one.losses[step], difference = std::abs(losses[i] - want) / std::abs(want);
    const bool tied = static_cast<Index>(step) >= one.first_tie;
    if (!tied) most = std::max(most, difference);
    if (difference <= (tied ? bounds.after_tie : bounds.loss)) continue;
    finding.errors.push_back(fmt::format("step {}: the loss is {:.9g}, but {:.9g} on one rank: more than {:g} apart",
                                         step + 1, losses[i], want, tied ? bounds.after_tie : bounds.loss));
    break;
  }
  return most;
}

class TrainingChecks {
 public:
  TrainingChecks(Checks& checks, std::string device, const fs::path& folder)
      : checks_(checks),
        world_(checks.world),
        device_(std::move(device)),
        bounds_(bounds_of(device_)),
        local_rank_(local_rank(world_)),
        data_folder_(folder / "data"),
        run_folder_(folder / ("run-" + device_)),
        self_(make_comm_self(world_.shared_context())),
        config_(config_for(world_.size())) {}

  void run() {
    agree_on_errors(world_, [&] {
      if (world_.rank() == 0 && !fs::exists(data_folder_)) write_data(data_folder_);
    });
    agree_on_errors(world_, [&] { data_.emplace(data_folder_); });
    check_alone();
    const bool is_complete = one_ && std::ssize(one_->losses) == steps;
    if (world_.max(is_complete ? 0 : 1) > 0) return;  // there is nothing to compare with
    if (world_.size() > 1 && device_ == "cuda" && !have_gpus()) return;
    const std::vector<Layout> layouts = layouts_for(config_, world_.size());
    if (world_.size() > 1)
      for (const Layout& layout : layouts) check_together(layout);
    check_checkpoint(layouts.back());
  }

 private:
  std::string name(const std::string& what) const { return fmt::format("training, {}, {}", device_, what); }
  auto progress(const std::string& check) {
    return [this, check](Index done) { checks_.options.progress(check, done, steps); };
  }
  Config config_of(const Layout& layout) const {
    Config config = config_;
    config.parallel = {layout.tp, layout.ep, layout.etp, layout.ranks_per_node};
    // The sizes of micro-batches, and numbers of them, differ between layouts.
    const Index sequences = config.train.global_batch / layout.dp();
    for (config.train.micro_batch = std::min<Index>(sequences, 8); sequences % config.train.micro_batch != 0;)
      --config.train.micro_batch;
    check_config_for_layout(config, layout);
    return config;
  }
  std::unique_ptr<Training> start(Comm& comm, const Layout& layout, const std::string& device) {
    return std::make_unique<Training>(comm, config_of(layout), make_device(device, local_rank_), *data_);
  }

  // Returns whether each rank has a GPU of its own: others have no collectives on GPUs.
  bool have_gpus() {
    bool have = false;
    checks_.run("GPUs", false, [&](Finding& finding) {
      std::unique_ptr<Device> device;
      agree_on_errors(world_, [&] { device = make_cuda(local_rank_); });
      try {
        agree_on_devices(world_, *device);
        finding.detail = "one for each rank";
        have = true;
      } catch (const CollectiveError& e) {
        finding.skipped = e.what();
      }
    });
    return have;
  }

  // Each rank alone on this device is compared with itself on the CPU, and with the others.
  void check_alone() {
    const std::string check = name("each rank alone");
    checks_.run(check, false, [&](Finding& finding) {
      std::vector<double> losses(steps, std::nan(""));
      // Errors of one rank must not keep it from the collective below.
      try {
        one_ = start(*self_, {}, "cpu");
        one_->watch_ties(bounds_.tie);
        one_->train_to(steps, progress(check));
        losses = one_->losses;
        if (device_ != "cpu") {
          const auto here = start(*self_, {}, device_);
          here->train_to(steps, progress(check));
          losses = here->losses;
          compare(losses, 0, *one_, bounds_, finding);
        }
        if (losses.back() > 0.9 * losses.front())
          finding.errors.push_back(
              fmt::format("the model does not learn: the loss goes from {:.4f} to {:.4f}", losses[0], losses.back()));
      } catch (const std::exception& e) {
        finding.errors.emplace_back(e.what());
      }
      const std::vector<std::string> hosts = all_gather_texts(world_, host_name());
      std::vector<double> all(losses.size() * hosts.size());
      world_.all_gather(view_of(losses.data(), {steps}), view_of(all.data(), {std::ssize(all)}));
      compare_ranks(losses, all, hosts, finding);
      finding.detail = fmt::format("{} steps, loss {:.4f} to {:.4f}{}", steps, all[0], all[steps - 1],
                                   world_.size() > 1 ? fmt::format(", the same on {} ranks", world_.size()) : "");
    });
  }
  // Ranks of one machine have the same bits, others the same losses within the bounds. Each rank is
  // compared with the first rank of its machine and with rank 0.
  void compare_ranks(const std::vector<double>& mine, const std::vector<double>& all,
                     const std::vector<std::string>& hosts, Finding& finding) const {
    const auto first_here = std::find(hosts.begin(), hosts.end(), host_name()) - hosts.begin();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const double here = all[static_cast<std::size_t>(first_here * steps) + i], zero = all[i];
      const bool tied = one_ && static_cast<Index>(i) >= one_->first_tie;
      if (mine[i] == here && std::abs(mine[i] - zero) <= (tied ? bounds_.after_tie : bounds_.loss) * zero) continue;
      // A rank without losses has reported its own error.
      if (std::isnan(mine[i]) || (std::isnan(here) && std::isnan(zero))) return;
      const bool on_machine = mine[i] != here && !std::isnan(here);
      finding.errors.push_back(fmt::format("step {}: the loss is {:.17g}, but {:.17g} on rank {}{}", i + 1, mine[i],
                                           on_machine ? here : zero, on_machine ? first_here : 0,
                                           on_machine ? " of the same machine" : ""));
      return;
    }
  }

  void check_together(const Layout& layout) {
    const std::string check = name(layout.short_name());
    checks_.run(check, false, [&](Finding& finding) {
      const auto training = start(world_, layout, device_);
      training->train_to(steps, progress(check));
      const double most = compare(training->losses, 0, *one_, bounds_, finding);
      finding.detail = fmt::format("{} ranks as one rank, losses within {:.1e}{}", layout.ranks, most, tie_text());
    });
  }
  std::string tie_text() const {
    return one_->first_tie < steps ? fmt::format(" up to step {}, where two router scores tie", one_->first_tie) : "";
  }

  void check_checkpoint(const Layout& layout) {
    const std::string check = fmt::format("checkpoint, {}, {}", device_, layout.short_name());
    checks_.run(check, false, [&](Finding& finding) {
      const auto training = start(world_, layout, device_);
      training->train_to(saved_step, progress(check));
      training->save(world_, run_folder_);
      const auto saved = training->weights();
      training->train_to(steps, progress(check));

      const fs::path path = resolve_checkpoint(world_, run_folder_, nullptr).path();
      const auto resumed = start(world_, layout, device_);
      agree_on_errors(world_, [&] { resumed->load(path); });
      for (const auto& [parameter, values] : resumed->weights())
        if (values != saved.at(parameter))
          finding.errors.push_back(fmt::format("{} is loaded with other values than were saved", parameter));
      resumed->train_to(steps, progress(check));
      for (std::size_t i = 0; i < resumed->losses.size(); ++i) {
        const std::size_t step = static_cast<std::size_t>(saved_step) + i;
        if (resumed->losses[i] == training->losses[step]) continue;
        finding.errors.push_back(fmt::format("step {}: the loss is {:.17g} after a resume, but {:.17g} without",
                                             step + 1, resumed->losses[i], training->losses[step]));
        break;
      }
      if (world_.size() > 1) check_on_one_rank(path, finding);
      finding.detail =
          fmt::format("weights equal, and the losses after it{}", world_.size() > 1 ? ", also on one rank" : "");
    });
    agree_on_errors(world_, [&] {
      std::error_code ignored;
      if (world_.rank() == 0) fs::remove_all(run_folder_, ignored);
    });
  }
  // Each rank continues alone from the checkpoint of all ranks.
  void check_on_one_rank(const fs::path& path, Finding& finding) {
    agree_on_errors(world_, [&] {
      const auto alone = start(*self_, {}, device_);
      alone->load(path);
      alone->train_to(steps, [](Index) {});
      compare(alone->losses, saved_step, *one_, bounds_, finding);
    });
  }

  Checks& checks_;
  Comm& world_;
  const std::string device_;
  const Bounds bounds_;
  const int local_rank_;
  const fs::path data_folder_, run_folder_;
  const std::unique_ptr<Comm> self_;
  const Config config_;
  std::optional<Dataset> data_;
  std::unique_ptr<Training> one_;  // this rank alone, on the CPU
};

}  // namespace

void check_trainings(Checks& checks, const std::string& device, const fs::path& folder) {
  TrainingChecks(checks, device, folder).run();
}

}  // namespace sy::selftest
