#include "src/families/upcycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

class UpcycledValues final : public ValueSource {
 public:
  UpcycledValues(ValueSource& dense, const std::vector<ParamSpec>& specs, const Upcycling& upcycling,
                 std::uint64_t seed)
      : dense_(dense), upcycling_(upcycling), initial_(seed) {
    for (const ParamSpec& spec : specs) specs_[spec.name] = spec;
  }

  void read(const ParamSpec& spec, const Box& box, std::span<float> values) override {
    if (const auto same = specs_.find(spec.name); same != specs_.end()) return dense_.read(spec, box, values);
    constexpr std::string_view experts = ".moe.experts.", router = ".moe.router.weight";
    if (spec.name.ends_with(router)) return read_router(spec, box, values);
    const std::size_t at = spec.name.find(experts);
    SY_ASSERT(at != spec.name.npos, "{} is of neither model", spec.name);
    const std::string kind = spec.name.substr(at + experts.size());  // "up.weight"
    const ParamSpec& whole = specs_.at(spec.name.substr(0, at) + ".mlp." + kind);
    float* to = values.data();
    for (Index e = box.begin[0]; e < box.begin[0] + box.size[0]; ++e) {
      Box of_expert;
      for (int d = 1; d < box.size.size(); ++d) {
        // True for the dimension along which the dense FFN is divided.
        const bool divided = whole.shape[d - 1] != spec.shape[d];
        of_expert.begin.push_back(box.begin[d] + (divided ? e % upcycling_.granularity * spec.shape[d] : 0));
        of_expert.size.push_back(box.size[d]);
      }
      const std::span<float> expert_values(to, static_cast<std::size_t>(of_expert.elements()));
      dense_.read(whole, of_expert, expert_values);
      // The output bias is added once by each of the upcycling_.granularity experts.
      if (kind == "down.bias")
        for (float& value : expert_values) value /= static_cast<float>(upcycling_.granularity);
      to += expert_values.size();
    }
  }

 private:
  void read_router(const ParamSpec& spec, const Box& box, std::span<float> values) {
    float* to = values.data();
    for (Index e = box.begin[0]; e < box.begin[0] + box.size[0]; ++e) {
      Box row = box;
      row.begin[0] = e - e % upcycling_.granularity;
      row.size[0] = 1;
      initial_.read(spec, row, {to, static_cast<std::size_t>(row.elements())});
      to += row.elements();
    }
  }

  ValueSource& dense_;
  Upcycling upcycling_;
  InitialValues initial_;
  std::map<std::string, ParamSpec> specs_;  // of the dense model
};

// Returns the values of the first stack whose FFNs become experts, or of [model] without stacks.
const Config::Model& upcycled_model(const Config& dense, const std::vector<std::string>& overrides) {
  for (const Config::Kind& stack : dense.stacks) {
    const std::string key = stack.name + ".experts";
    const bool stays_dense = std::ranges::find(stack.own_keys, key) != stack.own_keys.end() ||
                             std::ranges::find(overrides, fmt::format("--{}=0", key)) != overrides.end();
    if (!stays_dense) return stack.model;
  }
  return dense.model;
}

// Checks that the experts of each layer are made of its FFN. All layers have equal experts.
void check_ffns(const Config& dense, const Config& upcycled, const Upcycling& upcycling) {
  const Config::Moe& experts = upcycled.moe;
  for (Index layer = 0; layer < upcycled.model.layers; ++layer) {
    const Config::Model& m = dense.model_of(layer);
    if (!upcycled.is_moe(layer) || (m.d_ff == experts.d_ff * upcycling.granularity && m.ffn == experts.ffn)) continue;
    bad_input(
        "--upcycle: {} has d_ff = {} and ffn = {}, of which no experts with moe.d_ff = {} and moe.ffn = {} can be made{}",
        dense.layer_name(layer), m.d_ff, m.ffn, experts.d_ff, experts.ffn,
        dense.stacks.empty() ? "" : ": upcycle one stack, with --encoder.experts=0 or --decoder.experts=0");
  }
}

}  // namespace

Upcycling parse_upcycling(const std::string& text) {
  Upcycling upcycling;
  const std::pair<std::string_view, Index*> known[] = {
      {"experts", &upcycling.experts}, {"top_k", &upcycling.top_k}, {"parts", &upcycling.granularity}};
  for (const std::string& item : split_list(text)) {
    const std::size_t equals = std::min(item.find('='), item.size());
    const auto found = std::find_if(std::begin(known), std::end(known),
                                    [&](const auto& row) { return row.first == item.substr(0, equals); });
    const std::string_view number = std::string_view(item).substr(std::min(equals + 1, item.size()));
    const Index value = parse_number<Index>(number).value_or(0);
    if (found == std::end(known) || value < 1)
      bad_input("--upcycle {}: '{}': write experts=E,top_k=K or experts=E,top_k=K,parts=P", text, item);
    *found->second = value;
  }
  if (upcycling.experts < 1 || upcycling.top_k < 1) bad_input("--upcycle {}: write experts=E,top_k=K", text);
  if (upcycling.experts % upcycling.granularity != 0 || upcycling.top_k % upcycling.granularity != 0)
    bad_input("--upcycle {}: experts and top_k must be multiples of parts, of which a whole FFN is made", text);
  return upcycling;
}

Config upcycled_config(const Config& dense, const Upcycling& upcycling, const std::vector<std::string>& overrides) {
  if (dense.moe.experts > 0)
    bad_input("--upcycle makes experts of a dense model's FFN, and this model has {} experts already",
              dense.moe.experts);
  const Config::Model& ffn = upcycled_model(dense, overrides);
  if (ffn.d_ff % upcycling.granularity != 0)
    bad_input("--upcycle: an FFN of width {} cannot be divided into {} parts", ffn.d_ff, upcycling.granularity);
  const bool biased = dense.model.bias == Biases::all || dense.model.bias == Biases::mlp;
  std::vector<std::string> settings;
  const auto set = [&](std::string_view key, const auto& value) {
    settings.push_back(fmt::format("--{}={}", key, value));
  };
  set("moe.experts", upcycling.experts);
  set("moe.top_k", upcycling.top_k);
  set("moe.d_ff", ffn.d_ff / upcycling.granularity);
  set("moe.ffn", ffn.ffn);
  set("moe.renormalize", true);
  set("moe.scale", upcycling.granularity);
  set("moe.capacity_factor", 0);
  set("moe.bias", biased);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  Config config = parse_config(to_ini(dense), "the dense model's configuration", settings);
  check_ffns(dense, config, upcycling);
  return config;
}

std::unique_ptr<ValueSource> upcycled_values(ValueSource& dense_values, const std::vector<ParamSpec>& dense,
                                             const Upcycling& upcycling, std::uint64_t seed) {
  return std::make_unique<UpcycledValues>(dense_values, dense, upcycling, seed);
}

}  // namespace sy
