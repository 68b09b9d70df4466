#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/analyse/experts.h"
#include "src/cli/progress.h"
#include "src/cli/trained.h"
#include "src/evaluate/evaluate.h"
#include "src/evaluate/logits.h"
#include "src/io/hdf5/array_file.h"
#include "src/io/manifest.h"
#include "src/provenance/provenance.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/text/table.h"
#include "src/train/memory.h"

namespace sy {
namespace fs = std::filesystem;
namespace {

// Returns the checkpoint's own layout, if the ranks allow it and tp ranks can share any number of
// windows. Otherwise every rank holds the whole model.
Layout evaluation_layout(const Config& config, int ranks) {
  const Layout own = config.layout(ranks);
  const bool fits = own.divides() && config.decoder_length() % own.tp == 0 && config.encoder_length() % own.tp == 0;
  return fits ? own : Layout{ranks};
}

// Returns the reason why an evaluation of some windows at this step may not replace `file`: it
// holds one of all windows, or it cannot be read. Empty if it is damaged, or of another step.
std::string reason_to_keep(const fs::path& file, Index step) {
  std::string text;
  try {
    if (!file_exists(file)) return "";
    text = read_file(file);
  } catch (const InputError& e) {
    return e.what();
  }
  try {
    const Evaluation there = parse_evaluation(text, file);
    if (there.step != step || there.windows != there.of) return "";
  } catch (const InputError&) {
    return "";
  }
  return fmt::format("{} keeps the evaluation of all windows at step {}", file.string(), step);
}

// Returns whether `file` holds an evaluation of another data set than the one with `digest`.
bool is_of_another_dataset(const fs::path& file, const std::string& digest) {
  if (!file_exists(file)) return false;
  const std::optional<Json> there = Json::try_parse(read_file(file));
  const Json* const other = there ? there->find("dataset_digest") : nullptr;
  return other && *other != Json(digest);
}

// Checks the options that only decoders or only encoders have.
void check_scoring(const Config& config, const po::variables_map& arguments) {
  const bool encoder = config.model.kind == ModelKind::encoder;
  if (config.model.kind == ModelKind::encoder_decoder && arguments.count("stride"))
    bad_input("evaluate: --stride is of decoders, and the windows of an encoder-decoder do not overlap: leave it out");
  if (config.has_visible_prefix() && arguments.count("stride"))
    bad_input(
        "evaluate: --stride is of causal decoders, and train.objective = prefix predicts the tokens after the prefix of "
        "each window: leave it out");
  if (encoder && arguments.count("stride"))
    bad_input("evaluate: --stride is of decoders, which predict next tokens, and this is an encoder: leave it out{}",
              arguments.count("pseudo-perplexity") ? "" : ", or give --pseudo-perplexity");
  if (!encoder && arguments.count("pseudo-perplexity"))
    bad_input("evaluate: --pseudo-perplexity is of encoders, and this is {}: leave it out for its perplexity",
              config.model.kind == ModelKind::decoder ? "a decoder" : "an encoder-decoder");
}

// Returns true if the windows of a pass share the capacity, as in training.
bool shares_capacity(const Config& config, const po::variables_map& arguments) {
  return arguments.count("capacity") > 0 && config.moe.capacity_factor > 0 &&
         config.moe.capacity_scope == CapacityScope::rank;
}

void check_capacity(const Config& config, const po::variables_map& arguments) {
  const Index batch = arguments["batch"].as<Index>(), micro_batch = config.train.micro_batch;
  if (shares_capacity(config, arguments) && !arguments["batch"].defaulted() && batch != micro_batch)
    bad_input(
        "evaluate: --batch {} with --capacity: moe.capacity_scope = rank drops tokens by {} windows at a time, as "
        "training does (train.micro_batch): leave out --batch",
        batch, micro_batch);
}

void check_stride(const po::variables_map& arguments, const EvaluateOptions& evaluation, Index window) {
  if (has_value(arguments, "stride") && (evaluation.stride < 1 || evaluation.stride > window))
    bad_input("evaluate: --stride must be from 1 to {}, the tokens of a window (model.seq_len)", window);
}

// Parses "3,1,4": ids in the model's vocabulary.
std::vector<std::int32_t> parse_tokens(const char* option, const std::string& text, Index vocab) {
  std::vector<std::int32_t> ids;
  for (const std::string& item : split_list(text)) {
    const std::int32_t id = parse_number<std::int32_t>(item).value_or(-1);
    if (id < 0 || id >= vocab)
      bad_input("evaluate: --{}: '{}' is no token id: expected numbers from 0 to {} with commas between them", option,
                item, vocab - 1);
    ids.push_back(id);
  }
  if (ids.empty()) bad_input("evaluate: --{} is empty: give ids with commas between them", option);
  return ids;
}

// Writes the logits after each of the tokens, or of those of the decoder of an encoder-decoder.
void write_logits(Comm& world, const Trained& trained, const po::variables_map& arguments, const std::string& backend) {
  const std::string file = arguments["logits"].as<std::string>();
  const bool quiet = arguments.count("quiet") > 0;
  const bool needs_pairs = trained.config.model.kind == ModelKind::encoder_decoder,
             has_prefix = trained.config.has_visible_prefix(),
             pairs = needs_pairs || (has_prefix && arguments.count("decoder-tokens") > 0);
  std::vector<std::int32_t> source, ids;
  Index positions = 0;
  agree_on_errors(world, [&] {
    if (needs_pairs && !arguments.count("decoder-tokens"))
      bad_input(
          "evaluate: the model is an encoder-decoder, whose encoder reads --tokens: give the inputs of the "
          "decoder with --decoder-tokens");
    if (!pairs && arguments.count("decoder-tokens"))
      bad_input(
          "evaluate: --decoder-tokens is of encoder-decoders and of train.objective = prefix, and this is neither: "
          "leave it out");
    ids = parse_tokens("tokens", arguments["tokens"].as<std::string>(), trained.state.vocab);
    if (pairs) {
      source = std::move(ids);
      ids = parse_tokens("decoder-tokens", arguments["decoder-tokens"].as<std::string>(), trained.state.vocab);
    }
    positions = std::ssize(ids) + (needs_pairs ? 0 : std::ssize(source));
    check_positions(trained.config, positions, std::ssize(source));
    if (needs_pairs) positions = std::max(positions, std::ssize(source));
    if (file_exists(file)) bad_input("evaluate: --logits: {} exists already: name a new file", file);
  });
  const auto engine = with_advice("give fewer --tokens", [&] {
    return load_model(world, trained, evaluation_layout(trained.config, world.size()), backend, positions);
  });
  std::vector<float> logits;
  abort_job_on_error(world, [&] {
    Progress progress;
    if (pairs) {
      logits = pair_logits(*engine, source, ids);
      if (has_prefix) ids.insert(ids.begin(), source.begin(), source.end());
      return 0;
    }
    logits = sequence_logits(*engine, ids, [&](Index done, Index total) {
      const Index bytes = trained.state.vocab * Index{sizeof(float)};
      if (world.rank() == 0 && !quiet) progress.show("computing logits", done * bytes, total * bytes);
    });
    return 0;
  });
  agree_on_errors(world, [&] {
    if (world.rank() != 0) return;
    const ArrayFileEntry entries[] = {
        {.name = "/logits",
         .attributes = {{"dimensions", "position, token"},
                        {"meaning", "behind each of the given tokens, before the softmax"}},
         .dtype = DType::f32,
         .shape = {std::ssize(ids), trained.state.vocab},
         .data = logits.data()},
        {.name = "/tokens", .attributes = {}, .dtype = DType::i32, .shape = {std::ssize(ids)}, .data = ids.data()}};
    write_array_file(file, entries);
  });
}

}  // namespace

int evaluate_command(CommandLine& line) {
  po::options_description options("options");
  EvaluateOptions evaluation;
  std::string backend;
  // clang-format off
  options.add_options()
      ("data", po::value<std::string>(), "prepared data set; default: the one that it was trained on")
      ("max-windows", po::value<Index>(&evaluation.max_windows)->default_value(0),
       "evaluate this many windows of each domain, evenly spread; 0: all")
      ("stride", po::value<Index>(&evaluation.stride),
       "begin a window every so many tokens: each token is predicted once, by the first window that reaches it; default: "
       "model.seq_len, so that windows do not overlap")
      ("pseudo-perplexity", "of an encoder: hide each token alone, and predict it from all others of its window; a "
       "window then takes as many passes as it has tokens; default: the loss of the tokens that masking chooses")
      ("batch", po::value<Index>(&evaluation.windows_per_pass)->default_value(8), "windows computed at a time")
      ("tokens", po::value<std::string>(), "ids with commas between them: compute their --logits, and nothing else")
      ("decoder-tokens", po::value<std::string>(),
       "of an encoder-decoder, whose encoder reads --tokens: the inputs of its decoder, whose logits are computed; with "
       "train.objective = prefix, the tokens after the visible prefix, which is --tokens")
      ("logits", po::value<std::string>(), "HDF5 file to make, with /logits [position, token] in f32")
      ("capacity", "drop as training does, by moe.capacity_factor; default: dropless")
      ("backend", po::value<std::string>(&backend)->default_value("auto"), "auto, cpu or cuda")
      ("quiet", "no progress")
      ("json", "print JSON");
  // clang-format on
  add_force_data(options);
  po::variables_map arguments;
  bool go = true;
  Comm& world = line.world;
  agree_on_errors(world, [&] {
    ErrorList errors("evaluate");
    go = parse_options(line, "evaluate", options, {"checkpoint"}, arguments, errors);
    if (!go) return;
    if (has_value(arguments, "batch") && evaluation.windows_per_pass < 1)
      errors.add("evaluate: --batch must be at least 1");
    if (has_value(arguments, "max-windows") && evaluation.max_windows < 0)
      errors.add("evaluate: --max-windows must not be negative");
    if (arguments.count("tokens") != arguments.count("logits"))
      errors.add("evaluate: --tokens and --logits go together: what to compute, and where to write it");
    if (arguments.count("decoder-tokens") && !arguments.count("tokens"))
      errors.add("evaluate: --decoder-tokens needs a source: give the encoder's ids with --tokens");
    const bool lead = world.rank() == 0;
    if (lead && has_value(arguments, "data"))
      errors.run([&] { read_dataset_ini(arguments["data"].as<std::string>()); });
    // All ranks open the checkpoint later. Here it is opened only to report its errors with the
    // others.
    if (lead && !errors.empty() && has_value(arguments, "checkpoint"))
      errors.run([&] {
        const TrainState state = read_state(resolve_checkpoint(arguments["checkpoint"].as<std::string>(), nullptr));
        check_stride(arguments, evaluation, parse_config(state.config, "the checkpoint").model.seq_len);
      });
    errors.raise();
  });
  if (!go) return 0;
  Trained trained = open_checkpoint(world, arguments["checkpoint"].as<std::string>());
  if (arguments.count("tokens")) {
    write_logits(world, trained, arguments, backend);
    return 0;
  }
  const fs::path& step_dir = trained.step_dir();
  const TrainState& state = trained.state;
  Config& config = trained.config;
  fs::path data;
  const Index window = config.model.seq_len;
  agree_on_errors(world, [&] {
    check_scoring(config, arguments);
    check_capacity(config, arguments);
    check_stride(arguments, evaluation, window);
    data = dataset_of(trained, arguments);
  });
  const Dataset dataset = open_for_all_ranks(world, data, [&] {
    Dataset opened = open_validation(trained, data, arguments, world.rank() == 0, !arguments.count("data"));
    find_tokenizer_numbers(config, opened, evaluation.max_windows);
    return opened;
  });
  fit_positions(config, dataset);
  evaluation.dropless = !arguments.count("capacity");
  if (shares_capacity(config, arguments)) evaluation.windows_per_pass = config.train.micro_batch;
  evaluation.hide_each = arguments.count("pseudo-perplexity") > 0;
  const Scoring scoring = evaluation.hide_each                          ? Scoring::each_token
                          : config.train.objective == Objective::masked ? Scoring::masked_tokens
                                                                        : Scoring::next_tokens;
  EvaluationInfo evaluation_info{
      state.step,
      fs::absolute(dataset.dir()).lexically_normal().string(),
      dataset.digest(),
      !arguments.count("data") || state.dataset_digest.empty() || state.dataset_digest == dataset.digest(),
      evaluation.dropless ? 0 : config.moe.capacity_factor,
      window,
      arguments.count("stride") ? evaluation.stride : window,
      scoring,
      with_inputs(line.provenance, state.config, dataset.digest())};

  const std::string advice = "lower --batch, or use more ranks";
  const auto engine =
      with_advice(advice, [&] { return load_model(world, trained, evaluation_layout(config, world.size()), backend); });
  const bool show = world.rank() == 0 && !arguments.count("quiet") && isatty(STDERR_FILENO);
  std::vector<DomainScore> scores;
  abort_job_on_error(world, [&] {
    with_advice(advice, [&] {
      scores = evaluate(*engine, dataset, evaluation, [&](Index done, Index total) {
        if (show) fmt::print(stderr, "\revaluating {}/{} windows{}", done, total, done == total ? "\n" : "");
      });
    });
    return 0;
  });

  agree_on_errors(world, [&] {
    if (world.rank() != 0) return;
    const DomainScore all = total_of(scores);
    const Json json = to_json(scores, engine->model().moe_layer_ids(), evaluation_info);
    // The expert report reads the scores of the domains from this file.
    if (const auto run = run_of(step_dir)) {
      // An imported checkpoint has no data set of its own: the first one has the plain name.
      if (state.dataset_digest.empty() &&
          is_of_another_dataset(*run / evaluation_file(evaluation_info), evaluation_info.dataset_digest))
        evaluation_info.own_dataset = false;
      const fs::path file = *run / evaluation_file(evaluation_info);
      if (access(run->c_str(), W_OK) != 0)
        warn(fmt::format("{} cannot be written ({}): this evaluation is only printed", file.string(),
                         std::strerror(errno)));
      else if (const std::string reason = all.windows < all.total_windows ? reason_to_keep(file, state.step) : "";
               !reason.empty())
        warn(fmt::format("{}: this one, of {} of {}, is only printed", reason, all.windows, all.total_windows));
      else
        write_file(file, json_text(json, 1));
    }
    if (arguments.count("json")) {
      fmt::print("{}", json_text(json, 1));
      return;
    }
    const bool masked = scoring == Scoring::masked_tokens;
    std::vector<std::string> columns{"domain", "tokens", masked ? "masked loss" : "loss"};
    if (!masked)
      columns.insert(columns.end(), {evaluation.hide_each ? "pseudo-perplexity" : "perplexity", "bits/byte"});
    Table table(columns);
    std::vector<DomainScore> rows = scores;
    if (scores.size() != 1) rows.push_back(all);
    for (const DomainScore& s : rows) {
      std::vector<std::string> cells{s.name, std::to_string(s.tokens), number_text(s.loss(), 4)};
      if (!masked) cells.insert(cells.end(), {number_text(s.perplexity(), 3), number_text(s.bits_per_byte(), 4)});
      table.row(cells);
    }
    fmt::print("{} at step {}{}{}\n{}", visible(step_dir.string()), state.step,
               all.windows < all.total_windows ? fmt::format(", {} of {} windows", all.windows, all.total_windows) : "",
               evaluation_info.stride < window
                   ? fmt::format(", a window of {} tokens every {}", window, evaluation_info.stride)
                   : "",
               table.str());
  });
  return 0;
}

}  // namespace sy
