#include <algorithm>
#include <sstream>

#include "dist/rank_settings.h"
#include "src/cli/conversation.h"
#include "src/config/layout.h"
#include "src/data/tokenizer.h"
#include "src/evaluate/fill_mask.h"
#include "src/generate/beam_search.h"
#include "src/generate/stop_strings.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/train/memory.h"

namespace sy {
namespace {

struct Settings {
  GenerateOptions options;
  std::vector<std::string> prompts, stops;
  std::string backend, system, chat_template;
  std::string fill_mask;  // empty: prompts are continued
  Index fillings = 5;
  BeamOptions beams;
  bool samples = false;  // an option of random choices is set
  bool chat = false;
  std::optional<int> tp, ep, etp;
};

// Returns false if there is nothing to do, as with --help.
bool read_settings(CommandLine& line, Settings& s, po::variables_map& arguments) {
  po::options_description options("options");
  SampleOptions& sampling = s.options.sampling;
  // clang-format off
  options.add_options()
      ("prompt", po::value<std::vector<std::string>>(), "text to continue; given several times, several at once")
      ("prompts", po::value<std::string>(),
       "file with a text to continue in each line; blank lines are passed over")
      ("fill-mask", po::value<std::string>(&s.fill_mask),
       "of an encoder: text in which [MASK] or <mask> stands for each hidden token; prints the likeliest tokens")
      ("fillings", po::value<Index>(&s.fillings)->default_value(5), "with --fill-mask: tokens to print for each")
      ("beams", po::value<Index>(&s.beams.beams)->default_value(1),
       "of an encoder-decoder, whose prompts are sources: search among this many targets; 1: always the likeliest token")
      ("length-penalty", po::value<double>(&s.beams.length_penalty)->default_value(1.0, "1"),
       "with --beams: targets are compared by the sum of the log-probabilities of their tokens, divided by their number "
       "to this power")
      ("chat", po::bool_switch(&s.chat),
       "hold a conversation: each line of the standard input is a message, and the model answers it")
      ("system", po::value<std::string>(&s.system), "with --chat: the system message of the conversation")
      ("template", po::value<std::string>(&s.chat_template)->value_name("hf:FOLDER"),
       "with --chat: another chat template than that of the run's tokenizer, as for `prepare`")
      ("tokens", po::value<Index>(&s.options.tokens)->default_value(200), "tokens to add at most")
      ("temperature", po::value<double>(&sampling.temperature)->default_value(0.8, "0.8"),
       "0: always the most likely token")
      ("top-k", po::value<Index>(&sampling.top_k)->default_value(0),
       "choose among the k most likely tokens; 0: all")
      ("top-p", po::value<double>(&sampling.top_p)->default_value(1.0),
       "choose among the most likely tokens that reach this probability")
      ("min-p", po::value<double>(&sampling.min_p)->default_value(0.0),
       "choose among tokens of at least this share of the most likely one's probability")
      ("repetition-penalty", po::value<double>(&sampling.repetition_penalty)->default_value(1.0),
       "above 1: tokens that are there already become less likely")
      ("stop", po::value<std::vector<std::string>>(&s.stops),
       "end a text before this string; may be given several times")
      ("seed", seed_value(s.options.seed),
       "the random choices follow from this number")
      ("batch", po::value<Index>(&s.options.batch)->default_value(16),
       "texts that a data-parallel rank computes at a time")
      ("data", po::value<std::string>(),
       "data set whose tokenizer to use; default: the tokenizer that the run keeps")
      ("backend", po::value<std::string>(&s.backend)->default_value("auto"), "auto, cpu or cuda");
  // clang-format on
  for (const auto& [name, to] : {std::pair{"parallel.tp", &s.tp}, {"parallel.ep", &s.ep}, {"parallel.etp", &s.etp}})
    options.add_options()(name, po::value<int>()->notifier([to = to](int value) { *to = value; }),
                          "as for training; default: the checkpoint's own layout, where the ranks allow it");
  add_force_data(options);
  options.add_options()("json", "print JSON: an array with an object for each prompt, or the messages of --chat");
  ErrorList errors("generate");
  if (!parse_options(line, "generate", options, {"checkpoint"}, arguments, errors)) return false;
  if (!(sampling.temperature >= 0)) errors.add("generate: --temperature must not be negative");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) errors.add("generate: --top-p must be in (0, 1]");
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) errors.add("generate: --min-p must be in [0, 1]");
  if (!(sampling.repetition_penalty > 0)) errors.add("generate: --repetition-penalty must be above 0");
  constexpr Index max_tokens = Index{1} << 30;
  if (sampling.top_k < 0) errors.add("generate: --top-k must not be negative");
  if (s.options.tokens < 0 || s.options.tokens > max_tokens)
    errors.add("generate: --tokens must be from 0 to {}", max_tokens);
  if (s.options.batch < 1) errors.add("generate: --batch must be at least 1");
  for (const std::string& stop : s.stops)
    if (stop.empty()) errors.add("generate: --stop must not be empty");
  for (const std::optional<int>& size : {s.tp, s.ep, s.etp})
    if (size && *size < 1) errors.add("generate: --parallel.tp, --parallel.ep and --parallel.etp must be at least 1");

  if (has_value(arguments, "prompt")) s.prompts = arguments["prompt"].as<std::vector<std::string>>();
  bool read = true;
  if (has_value(arguments, "prompts"))
    read = errors.run([&] {
      std::istringstream lines(read_file(arguments["prompts"].as<std::string>()));
      for (std::string text; std::getline(lines, text);) {
        if (text.ends_with('\r')) text.pop_back();
        if (!trimmed(text).empty()) s.prompts.push_back(text);
      }
    });
  for (const char* option : {"temperature", "top-k", "top-p", "min-p", "repetition-penalty"})
    s.samples = s.samples || (arguments.count(option) > 0 && !arguments[option].defaulted());
  if (s.beams.beams < 1) errors.add("generate: --beams must be at least 1");
  const bool fills = arguments.count("fill-mask") > 0;
  if (fills && s.fill_mask.empty()) errors.add("generate: --fill-mask must not be empty");
  if (s.fillings < 1) errors.add("generate: --fillings must be at least 1");
  if (fills && (s.chat || arguments.count("prompt") || arguments.count("prompts")))
    errors.add("generate: --fill-mask takes its own text: leave out --prompt, --prompts and --chat");
  if (read && s.prompts.empty() && !s.chat && !fills)
    errors.add("generate: there is no prompt: give one with --prompt, a file of them with --prompts, or --chat");
  if (s.chat && (has_value(arguments, "prompt") || has_value(arguments, "prompts")))
    errors.add("generate: --chat reads messages from the standard input: leave out --prompt and --prompts");
  if (!s.chat && (has_value(arguments, "system") || has_value(arguments, "template")))
    errors.add("generate: --system and --template belong to --chat");
  errors.raise();
  return true;
}

// Returns the requested layout, or the checkpoint's own if the ranks allow it. Otherwise every rank
// holds the whole model.
Layout layout_of(const Settings& s, Config config, int ranks) {
  const Layout trained = config.layout(ranks);
  if (!s.tp && !s.ep && !s.etp) return trained.divides() ? trained : Layout{ranks};
  const Layout asked{ranks, s.tp.value_or(1), s.ep.value_or(1), s.etp.value_or(1)};
  // Any number of sequences can be distributed.
  config.train.micro_batch = asked.tp;
  config.train.global_batch = config.train.micro_batch * (asked.tp_divides() ? asked.dp() : 1);
  config.train.batch_ramp = {};
  config.train.validate_every = 0;
  check_config_for_layout(config, asked);
  return asked;
}

// Converts prompts and generated ids between text and ids.
class Texts {
 public:
  Texts(const Tokenizer& tokenizer, const std::vector<std::string>& prompts) : tokenizer_(tokenizer) {
    for (const std::string& prompt : prompts) {
      auto& ids = prompts_.emplace_back();
      tokenizer.encode(prompt, ids);
      empty_.push_back(ids.empty());
      if (ids.empty()) ids.push_back(tokenizer.end_of_text());  // starts a new document
      before_.push_back(tokenizer.decode(ids).size());
    }
  }
  const std::vector<std::vector<std::int32_t>>& prompts() const { return prompts_; }
  // Returns a prompt as it is displayed.
  std::string prompt(std::size_t i) const { return empty_[i] ? "" : tokenizer_.decode(prompts_[i]); }
  // Returns the text that `ids` add to a prompt.
  std::string added(std::size_t i, std::span<const std::int32_t> ids) const {
    return added_text(tokenizer_, prompts_[i], before_[i], ids);
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::vector<bool> empty_;
  std::vector<std::size_t> before_;  // bytes of each prompt's text
};

// Checks that the model can do what the options ask for.
void check_kind(const Config& config, const Settings& s) {
  const bool encoder = config.model.kind == ModelKind::encoder;
  const bool pairs = config.model.kind == ModelKind::encoder_decoder;
  if (pairs && (s.samples || s.chat || !s.stops.empty()))
    bad_input(
        "generate: the model is an encoder-decoder, which searches for the likeliest target: give --prompt, "
        "--beams and --tokens, and no --chat, --stop or options of random choices");
  if (!pairs && s.beams.beams > 1)
    bad_input("generate: --beams is of encoder-decoders, and this is none: leave it out");
  if (encoder && s.fill_mask.empty())
    bad_input("generate: the model is an encoder, which continues no text: give --fill-mask 'The [MASK] sat'");
  if (!encoder && !s.fill_mask.empty())
    bad_input("generate: --fill-mask is of encoders, and the model is {}: give --prompt",
              pairs ? "an encoder-decoder" : "a decoder");
}

// Prints the likeliest fillings of each hidden token. Collective.
void print_fillings(Comm& world, Engine& engine, const Tokenizer& tokenizer, std::int32_t mask_token,
                    const std::vector<std::int32_t>& ids, Index count, bool json) {
  const auto found = fill_mask(engine, ids, mask_token, tokenizer.vocab(), count);
  if (world.rank() != 0) return;
  Json list = Json::array();
  Table table({"mask", "token", "probability"});
  for (std::size_t i = 0; i < found.size(); ++i) {
    Json of_mask = Json::array();
    for (const Filling& filling : found[i]) {
      const std::string text = tokenizer.decode({filling.id});
      of_mask.push_back({{"id", filling.id}, {"text", text}, {"probability", filling.probability}});
      table.row({std::to_string(i + 1), text.empty() ? fmt::format("id {}", filling.id) : fmt::format("'{}'", text),
                 number_text(filling.probability, 4)});
    }
    list.push_back(std::move(of_mask));
  }
  fmt::print("{}", json ? json_text(list, 1) : table.str());
}

const char* name_of(Finish finish) {
  constexpr const char* names[] = {"length", "end_of_text", "stop"};
  return names[static_cast<int>(finish)];
}

Json continuation_json(const std::string& prompt, const std::string& text, const Continuation& found) {
  return {{"prompt", prompt},
          {"text", text},
          {"tokens", found.added},
          {"ended", found.finish == Finish::end_of_text},
          {"finish", name_of(found.finish)}};
}

// Prints the likeliest target of each source. Collective.
void print_targets(Comm& world, Engine& engine, const Tokenizer& tokenizer, const Settings& s,
                   std::vector<std::vector<std::int32_t>> sources, bool json) {
  BeamOptions options = s.beams;
  options.tokens = s.options.tokens;
  options.end = tokenizer.end_of_text();
  options.start = static_cast<std::int32_t>(engine.config().model.start_token);
  options.token_ids = tokenizer.vocab();
  for (auto& source : sources)  // as in training
    if (source.back() != options.end) source.push_back(options.end);
  const std::vector<Continuation> found = search_targets(engine, sources, options);
  if (world.rank() != 0) return;
  Json list = Json::array();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string text = tokenizer.decode(found[i].added);
    list.push_back(continuation_json(s.prompts[i], text, found[i]));
    if (!json) fmt::print("{}\n", visible(text));
  }
  if (json) fmt::print("{}", json_text(list, 1));
}

}  // namespace

int generate_command(CommandLine& line) {
  Comm& world = line.world;
  Settings s;
  po::variables_map arguments;
  bool go = true;
  agree_on_errors(world, [&] { go = read_settings(line, s, arguments); });
  if (!go) return 0;

  Trained trained = open_checkpoint(world, arguments["checkpoint"].as<std::string>());
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Texts> texts;
  std::optional<ChatTemplate> chat;
  Layout layout;
  Index positions = 0;
  std::vector<std::int32_t> masked_ids;  // of --fill-mask
  std::int32_t mask_token = -1;
  agree_on_errors(world, [&] {
    check_kind(trained.config, s);
    tokenizer = tokenizer_of(trained, arguments, world.rank() == 0);
    if (model_vocab(trained.config, tokenizer->vocab()) != trained.state.vocab)
      bad_input("the tokenizer knows {} tokens, the checkpoint {}: give its own data set with --data",
                tokenizer->vocab(), trained.state.vocab);
    if (!s.fill_mask.empty()) {
      const Index of_model = trained.config.model.mask_token;
      mask_token = of_model >= 0 ? static_cast<std::int32_t>(of_model) : tokenizer->mask_token();
      masked_ids = encode_masked(*tokenizer, mask_token, s.fill_mask);
      if (mask_token < 0 || std::ranges::count(masked_ids, mask_token) == 0)
        bad_input("generate: --fill-mask '{}' hides no token: write [MASK] in its place", s.fill_mask);
    }
    texts.emplace(*tokenizer, s.prompts);
    if (s.chat) chat = chat_template_of(trained, arguments);
    const bool needs_pairs = !trained.config.stacks.empty();
    const Index source = needs_pairs ? required_positions(texts->prompts(), 1) : 0;
    positions = !masked_ids.empty() ? std::ssize(masked_ids)
                : s.chat            ? trained.config.model.seq_len
                : needs_pairs       ? s.options.tokens
                                    : required_positions(texts->prompts(), s.options.tokens);
    check_positions(trained.config, positions, source);
    positions = std::max(positions, source);
    layout = layout_of(s, trained.config, world.size());
  });

  // Prompts and tokenizers come from files, which may differ between hosts.
  std::vector<RankSetting> ids{{"tokens of --fill-mask", fmt::format("{}", fmt::join(masked_ids, " "))}};
  for (std::size_t i = 0; i < texts->prompts().size(); ++i)
    ids.push_back({fmt::format("tokens of prompt {}", i + 1), fmt::format("{}", fmt::join(texts->prompts()[i], " "))});
  check_rank_settings(world, ids, "let all ranks read the same prompts and the same tokenizer");

  const std::string advice = "lower --batch or --tokens, use more ranks, or another --backend";
  const auto engine = with_advice(advice, [&] { return load_model(world, trained, layout, s.backend, positions); });

  const bool json = arguments.count("json") > 0;
  if (!masked_ids.empty())
    return abort_job_on_error(world, [&] {
      print_fillings(world, *engine, *tokenizer, mask_token, masked_ids, s.fillings, json);
      return 0;
    });
  if (!trained.config.stacks.empty())
    return abort_job_on_error(world, [&] {
      with_advice(advice, [&] { print_targets(world, *engine, *tokenizer, s, texts->prompts(), json); });
      return 0;
    });
  s.options.end_of_text = tokenizer->end_of_text();
  s.options.token_ids = tokenizer->vocab();
  if (chat) {
    const Conversation conversation = {*tokenizer, *chat, s.system, s.stops, positions};
    return abort_job_on_error(world, [&] {
      with_advice(advice, [&] { converse(world, *engine, conversation, s.options, json); });
      return 0;
    });
  }
  if (!s.stops.empty())
    s.options.stops = [&](std::size_t i, std::span<const std::int32_t> added) {
      return find_stop(texts->added(i, added), s.stops) != std::string::npos;
    };
  const bool speaks = world.rank() == 0, streams = speaks && !json && s.prompts.size() == 1;
  Shown shown;
  if (streams) shown.add(texts->prompt(0));
  std::vector<Continuation> found;
  abort_job_on_error(world, [&] {
    with_advice(advice, [&] {
      found = generate(*engine, texts->prompts(), s.options, [&](std::size_t i, std::span<const std::int32_t> added) {
        if (streams) shown.extend(displayed_text(texts->added(i, added), s.stops, true));
      });
    });
    return 0;
  });
  if (!speaks) return 0;

  Json list = Json::array();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string text = displayed_text(texts->added(i, found[i].added), s.stops, false);
    if (json) {
      list.push_back(continuation_json(s.prompts[i], text, found[i]));
      continue;
    }
    if (!streams) {
      fmt::print("--- {} of {} ---\n", i + 1, found.size());
      shown.add(texts->prompt(i));
    }
    shown.extend(text);
    shown.finish();
  }
  if (json) fmt::print("{}", json_text(list, 1));
  return 0;
}

}  // namespace sy
