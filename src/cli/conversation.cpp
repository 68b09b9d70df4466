#include "src/cli/conversation.h"

#include <algorithm>
#include <iostream>

#include "dist/errors.h"
#include "src/data/run_tokenizer.h"
#include "src/generate/stop_strings.h"
#include "src/io/manifest.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/strings.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Returns the next line of the first rank's standard input on all ranks. Empty at its end. Blank
// lines are passed over.
std::string next_message(Comm& world, bool prompts) {
  std::string line;
  if (world.rank() == 0) {
    do {
      if (prompts) fmt::print("> ");
      std::fflush(stdout);
      if (!std::getline(std::cin, line)) line.clear();
      line = trimmed(line);
    } while (line.empty() && std::cin);
  }
  return broadcast_text(world, line, 0);
}

// The end of an answer, from the template: a control token, or a string.
struct AnswerEnd {
  std::int32_t token = -1;  // -1 if there is none
  std::vector<std::string> stops;
};
AnswerEnd end_of_answer(const Conversation& c, const Json::Array& messages) {
  AnswerEnd end{-1, c.stops};
  const std::string after(trimmed(c.chat.after_answer(messages)));
  std::vector<std::int32_t> ids;
  c.tokenizer.encode(after, ids);
  if (ids.empty()) return end;
  // Decoders may drop a blank at the start of a text, but not a second one.
  if (c.tokenizer.decode({ids[0], ids[0]}).empty())
    end.token = ids[0];
  else
    end.stops.push_back(after.substr(0, after.find('\n')));
  return end;
}

}  // namespace

std::string added_text(const Tokenizer& tokenizer, std::vector<std::int32_t> prompt, std::size_t before,
                       std::span<const std::int32_t> ids) {
  prompt.insert(prompt.end(), ids.begin(), ids.end());
  const std::string text = tokenizer.decode(prompt);
  return text.substr(std::min(before, text.size()));
}

std::string displayed_text(const std::string& text, const std::vector<std::string>& stops, bool goes_on) {
  const std::size_t stop = find_stop(text, stops);
  if (stop != text.npos || !goes_on) return text.substr(0, stop);
  std::string shown = text.substr(0, before_partial_stop(text, stops));
  // SentencePiece decodes each byte of an unfinished character to U+FFFD. A later byte replaces it.
  constexpr std::string_view unfinished = "\xEF\xBF\xBD";
  while (shown.ends_with(unfinished)) shown.resize(shown.size() - unfinished.size());
  return shown;
}

ChatTemplate chat_template_of(const Trained& trained, const po::variables_map& arguments) {
  const auto run = run_of(trained.step_dir());
  std::vector<fs::path> folders;
  if (arguments.count("data")) folders.emplace_back(arguments["data"].as<std::string>());
  if (run) folders.insert(folders.end(), {*run / tokenizer_folder_name, *run / huggingface_folder_name});
  const auto tokens = std::ranges::find_if(
      folders, [](const fs::path& folder) { return file_exists(folder / huggingface_config_name); });
  const fs::path of_tokens = tokens == folders.end() ? fs::path() : *tokens;
  if (arguments.count("template")) {
    const auto value = arguments["template"].as<std::string>();
    if (!value.starts_with("hf:")) bad_input("--template {}: write hf:FOLDER", value);
    return {value.substr(3), of_tokens};
  }
  for (const fs::path& folder : folders)
    if (has_chat_template(folder)) return {folder, of_tokens};
  bad_input(
      "{} keeps no chat template: give one with --template hf:FOLDER, or train on data of `prepare --chat --template`",
      run ? run->string() : trained.step_dir().string());
}

void converse(Comm& world, Engine& engine, const Conversation& c, const GenerateOptions& options, bool json) {
  const bool speaks = world.rank() == 0, shows = speaks && !json;
  Json::Array messages;
  if (!c.system.empty()) messages.push_back({{"role", "system"}, {"content", c.system}});
  const bool prompts = shows && isatty(STDIN_FILENO) != 0;
  for (std::string line = next_message(world, prompts); !line.empty(); line = next_message(world, prompts)) {
    messages.push_back({{"role", "user"}, {"content", line}});
    const AnswerEnd end = end_of_answer(c, messages);
    std::vector<std::vector<std::int32_t>> prompt(1);
    c.tokenizer.encode(c.chat.text(messages, true), prompt[0]);
    const Index size = std::ssize(prompt[0]);
    if (size == 0) bad_input("the chat template gives no text for the conversation");
    if (size >= c.positions)
      bad_input("the conversation has {} tokens, and model.seq_len is {}: begin another one", size, c.positions);
    GenerateOptions limits = options;
    limits.tokens = std::min(options.tokens, c.positions - size);
    const std::size_t before = c.tokenizer.decode(prompt[0]).size();
    const auto answer = [&](std::span<const std::int32_t> ids) {
      return added_text(c.tokenizer, prompt[0], before, ids);
    };
    limits.stops = [&](std::size_t, std::span<const std::int32_t> added) {
      return added.back() == end.token ||
             (!end.stops.empty() && find_stop(answer(added), end.stops) != std::string::npos);
    };
    Shown shown;
    const auto found = generate(engine, prompt, limits, [&](std::size_t, std::span<const std::int32_t> added) {
      if (shows) shown.extend(displayed_text(answer(added), end.stops, true));
    });
    const std::string text = displayed_text(answer(found[0].added), end.stops, false);
    if (shows) {
      shown.extend(text);
      shown.finish();
    }
    messages.push_back({{"role", "assistant"}, {"content", std::string(trimmed(text))}});
  }
  if (speaks && json) fmt::print("{}", json_text(Json::array(messages), 1));
}

}  // namespace sy
