#include <fmt/core.h>
#include <unistd.h>

#include "src/cli/trained.h"
#include "src/data/tokenizer.h"
#include "src/generate/sample.h"
#include "src/text/json.h"
#include "src/text/table.h"
#include "src/train/memory.h"

namespace sy {
namespace {

// Text as it comes. A terminal gets it by whole characters, and none that it would obey.
class Shown {
 public:
  void add(std::string_view text) {
    pending_ += text;
    show(terminal_ ? whole_characters(pending_) : pending_.size());
  }
  void finish() {
    show(pending_.size());
    fmt::print("\n");
  }

 private:
  void show(std::size_t bytes) {
    const std::string text = pending_.substr(0, bytes);
    fmt::print("{}", terminal_ ? visible(text, "\n\t") : text);
    std::fflush(stdout);
    pending_.erase(0, bytes);
  }
  const bool terminal_ = isatty(STDOUT_FILENO) != 0;
  std::string pending_;
};

}  // namespace

int generate_command(CommandLine& line) {
  po::options_description options("options");
  SampleOptions sampling;
  Index count = 0;
  std::uint64_t seed = 0;
  std::string prompt, backend;
  options.add_options()                                                                  //
      ("prompt", po::value<std::string>(&prompt)->required(), "text to continue")        //
      ("tokens", po::value<Index>(&count)->default_value(200), "tokens to add at most")  //
      ("temperature", po::value<double>(&sampling.temperature)->default_value(0.8, "0.8"),
       "0: always the most likely token")  //
      ("top-k", po::value<Index>(&sampling.top_k)->default_value(0),
       "choose among the k most likely tokens; 0: all")  //
      ("top-p", po::value<double>(&sampling.top_p)->default_value(1.0),
       "choose among those that reach this probability")                                                         //
      ("seed", po::value<std::uint64_t>(&seed)->default_value(1), "the random choices follow from this number")  //
      ("data", po::value<std::string>(),
       "data set whose tokenizer to use; default: the one that it was trained on")               //
      ("backend", po::value<std::string>(&backend)->default_value("auto"), "auto, cpu or cuda")  //
      ("json", "print JSON");
  po::variables_map given;
  if (!parse_options(line, "generate", options, {"checkpoint"}, given)) return 0;
  if (!(sampling.temperature >= 0)) bad_input("generate: --temperature must not be negative");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) bad_input("generate: --top-p must be in (0, 1]");
  if (sampling.top_k < 0 || count < 0) bad_input("generate: --top-k and --tokens must not be negative");

  Trained trained = open_checkpoint(line.world, given["checkpoint"].as<std::string>());
  const auto tokenizer = open_tokenizer(dataset_of(trained, given));
  if (model_vocab(trained.config, tokenizer->vocab()) != trained.state.vocab)
    bad_input("the tokenizer knows {} tokens, the checkpoint {}: give its own data set with --data", tokenizer->vocab(),
              trained.state.vocab);

  std::vector<std::int32_t> ids;
  tokenizer->encode(prompt, ids);
  const std::size_t prompt_tokens = ids.size();
  if (ids.empty()) ids.push_back(tokenizer->end_of_text());  // an empty prompt starts a new document
  // Tables are made for no more positions than are computed, whatever the file says.
  Index& seq_len = trained.config.model.seq_len;
  seq_len = std::min(seq_len, static_cast<Index>(ids.size()) + count);

  const auto advised = [](auto work) {
    return with_advice("use another --backend, or a machine with more memory", work);
  };
  const std::unique_ptr<Engine> engine = advised([&] { return load_model(line.world, trained, {}, backend); });

  const bool json = given.count("json") > 0;
  const RandomStream random(seed, "generate");
  const std::size_t first = ids.size();
  std::string text = tokenizer->decode(ids);
  Shown shown;
  if (!json && prompt_tokens > 0) shown.add(text);
  bool ended = false;
  for (Index i = 0; i < count; ++i) {
    const Index context = std::min<Index>(static_cast<Index>(ids.size()), seq_len);
    auto logits = advised([&] { return engine->next_logits(std::span(ids).last(context)); });
    logits.resize(static_cast<std::size_t>(tokenizer->vocab()));  // what is no token is never chosen
    const std::int32_t next = sample_token(logits, sampling, random.uniform(i));
    if (next == tokenizer->end_of_text()) {
      ended = true;
      break;
    }
    ids.push_back(next);
    if (json) continue;
    const std::size_t before = text.size();
    text = tokenizer->decode(ids);
    shown.add(std::string_view(text).substr(std::min(before, text.size())));
  }
  if (!json) {
    shown.finish();
    return 0;
  }
  const std::vector<std::int32_t> added(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
  const Json out = {{"prompt", prompt}, {"text", tokenizer->decode(added)}, {"tokens", added}, {"ended", ended}};
  fmt::print("{}", json_text(out, 1));
  return 0;
}

}  // namespace sy
