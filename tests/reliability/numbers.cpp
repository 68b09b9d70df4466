// Row `number`: numbers that go wrong in the memory of a rank. The trials are collective.
//
// The linker replaces DistributedOptimizer::step (ld --wrap), to change gradients just before it.
#include <cmath>
#include <cstring>
#include <limits>

#include "dist/errors.h"
#include "src/system/digest.h"
#include "tests/mpi_world.h"
#include "tests/reliability/campaign.h"
#include "tests/src/two_domain_training.h"

namespace sy::campaign {
namespace {

std::function<void()> before_update;

}  // namespace

void call_before_update() {
  if (before_update) before_update();
}

}  // namespace sy::campaign

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker gives
extern "C" void __real__ZN2sy20DistributedOptimizer4stepERKNS_6Config5TrainEdld(sy::DistributedOptimizer*,
                                                                                const sy::Config::Train&, double,
                                                                                sy::Index, double);
extern "C" void __wrap__ZN2sy20DistributedOptimizer4stepERKNS_6Config5TrainEdld(sy::DistributedOptimizer* optimizer,
                                                                                const sy::Config::Train& train,
                                                                                double lr, sy::Index step,
                                                                                double limit) {
  sy::campaign::call_before_update();
  __real__ZN2sy20DistributedOptimizer4stepERKNS_6Config5TrainEdld(optimizer, train, lr, step, limit);
}
// NOLINTEND(bugprone-reserved-identifier)

namespace sy::campaign {
namespace {

constexpr const char* model_text = R"(
[model]
layers = 2
d_model = 16
heads = 4
kv_heads = 2
seq_len = 12
d_ff = 24
[moe]
experts = 4
top_k = 2
first_dense = 1
d_ff = 8
[train]
steps = 1000000000
global_batch = 4
micro_batch = 1
lr = 1e-4
warmup = 3
spike_sigma = 6
max_skipped = 1000000
[run]
check_every = 1
memory_check = digest
)";

struct Training : test::TwoDomainTraining {
  explicit Training(const std::vector<std::string>& settings) : TwoDomainTraining(test::world(), model_text, settings) {
    for (int step = 0; step < 24; ++step) trainer.step();  // the limit of the norm needs 16
  }
};

class Numbers final : public Row {
 public:
  Numbers() {
    trainings_.push_back(std::make_unique<Training>(std::vector<std::string>{"--parallel.ep=2"}));
    trainings_.push_back(std::make_unique<Training>(std::vector<std::string>{"--parallel.tp=2"}));
  }
  Index points() const override { return 0; }

  // All ranks draw the same numbers. One of them has the fault.
  TrialResult run(Index trial) override {
    Draw draw("number", trial);
    Training& training = *trainings_[static_cast<std::size_t>(draw.below(std::ssize(trainings_)))];
    const bool is_mine = draw.below(test::world().size()) == test::world().rank();
    switch (draw.below(3)) {
      case 0:
        return wrong_gradient(training, is_mine, draw);
      case 1:
        return flipped_owned_bit(training, is_mine, draw);
      default:
        return flipped_copy(training, is_mine, draw);
    }
  }

 private:
  // The step must be skipped on all ranks, and leave weights and state as they were.
  TrialResult wrong_gradient(Training& training, bool is_mine, Draw& draw) {
    constexpr float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(), 1e4f, -1e30f};
    const float value = values[draw.below(std::size(values))];
    ParamStore& store = training.engine.store();
    const Index group = draw.below(std::ssize(store.layout().groups)), number = draw.below(1 << 30);
    bool changed = false;
    before_update = [&] {
      changed = true;
      if (!is_mine) return;
      store.finish_gradients();
      const auto& slices = store.layout().groups[static_cast<std::size_t>(group)].slices;
      const ParamSlice& slice = slices[static_cast<std::size_t>(number % std::ssize(slices))];
      store.buffers(static_cast<std::size_t>(group)).grads.view().f32()[slice.offset + number % slice.box.elements()] =
          value;
    };
    const std::string before = owned_values(training);
    TrialResult result{Outcome::reported, fmt::format("{} in a gradient of group {}\n", value, group)};
    StepResult step;
    const std::string error = error_of([&] { step = training.trainer.step(); });
    before_update = nullptr;
    result.details += error;
    if (!changed) fail("the gradient was not changed: DistributedOptimizer::step was not replaced");
    if (!error.empty())
      result.outcome = Outcome::unclear;
    else if (!agreed(step.skipped) || !agreed(owned_values(training) == before))
      result.outcome = Outcome::wrong;
    // A good step, which begins with a check of all copies and owned values.
    if (const std::string again = error_of([&] { training.trainer.step(); }); !again.empty()) {
      result.outcome = Outcome::wrong;
      result.details += again;
    }
    return result;
  }

  // check_memory() must name the parameter.
  TrialResult flipped_owned_bit(Training& training, bool is_mine, Draw& draw) {
    ParamStore& store = training.engine.store();
    store.finish_all_gather();
    const auto group = static_cast<std::size_t>(draw.below(std::ssize(store.layout().groups)));
    const std::vector<OwnedRange> ranges = owned_ranges(store.layout().groups[group]);
    const Index number = draw.below(1 << 30), bit = draw.below(32), tensor = draw.below(4);
    std::string name;
    std::byte* byte = nullptr;
    if (is_mine && !ranges.empty()) {
      const OwnedRange& range = ranges[static_cast<std::size_t>(number % std::ssize(ranges))];
      ParamStore::Buffers& buffers = store.buffers(group);
      const Index at = range.flat.begin - store.layout().groups[group].owned().begin;
      std::vector<View> owned = {buffers.weights.view().rows(range.flat.begin, range.flat.size())};
      for (const Tensor& state : buffers.state) owned.push_back(state.view().rows(at, range.flat.size()));
      const View view = owned[static_cast<std::size_t>(tensor % std::ssize(owned))];
      byte = view.bytes() + number % range.flat.size() * 4 + bit / 8;
      name = range.slice->spec->name;
    }
    return flipped(byte, bit, name, [&] { training.trainer.check_memory(); });
  }

  // check_replicas() must name the parameter. All ranks hold these.
  TrialResult flipped_copy(Training& training, bool is_mine, Draw& draw) {
    constexpr const char* names[] = {"layers.0.attention_norm.weight", "layers.1.moe.router.weight",
                                     "layers.1.attention_norm.weight"};
    ParamStore& store = training.engine.store();
    store.finish_all_gather();
    const std::string name = names[draw.below(std::size(names))];
    const View weight = store.get(name).weight;
    const Index number = draw.below(weight.size_bytes() / 4), bit = draw.below(32);
    return flipped(is_mine ? weight.bytes() + number * 4 + bit / 8 : nullptr, bit, name,
                   [&] { training.trainer.check_replicas(); });
  }

  // Flips a bit of `byte` for the time of the check; nullptr: on another rank.
  static TrialResult flipped(std::byte* byte, Index bit, const std::string& name, const std::function<void()>& check) {
    const auto mask = std::byte{static_cast<unsigned char>(1u << bit % 8)};
    if (byte) *byte ^= mask;
    const std::string error = error_of(check);
    if (byte) *byte ^= mask;
    const bool any = test::world().max(byte != nullptr) > 0;
    TrialResult result{Outcome::reported, fmt::format("bit {} of {} flipped\n{}", bit, name, error)};
    if (!agreed(error.empty() != any) || !agreed(!byte || error.find(name) != std::string::npos))
      result.outcome = Outcome::wrong;
    if (const std::string again = error_of(check); !again.empty()) {
      result.outcome = Outcome::wrong;
      result.details += "\nwithout the fault: " + again;
    }
    if (!any) result.outcome = Outcome::survived;  // this rank owns nothing of the group
    return result;
  }

  static bool agreed(bool value) { return test::world().max(!value) == 0; }

  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const CollectiveError& e) {
      return e.what();
    }
    return "";
  }

  // Digest of the weights and the state that this rank owns.
  static std::string owned_values(Training& training) {
    ParamStore& store = training.engine.store();
    store.finish_all_gather();
    std::string all;
    for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
      const auto add = [&](const View& view) {
        if (view.present())
          all.append(reinterpret_cast<const char*>(view.bytes()), static_cast<std::size_t>(view.size_bytes()));
      };
      add(store.buffers(g).weights.view());
      for (const Tensor& state : store.buffers(g).state) add(state.view());
    }
    return all;
  }

  std::vector<std::unique_ptr<Training>> trainings_;
};

}  // namespace

std::unique_ptr<Row> make_numbers() {
  return std::make_unique<Numbers>();
}

}  // namespace sy::campaign
