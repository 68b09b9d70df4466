#include "src/data/chat.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "dist/shard.h"
#include "kernels/check.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Returns tokenizer_config.json; an empty object if the folder has none.
Json config_of(const fs::path& folder) {
  const fs::path file = folder / huggingface_config_name;
  if (!file_exists(file)) return Json::object();
  try {
    Json json = Json::parse(read_file(file));
    json.members();  // throws if it is no object
    return json;
  } catch (const JsonError& e) {
    bad_input("{} is {}: correct it", file.string(), e.what());
  }
}

constexpr const char *default_name = "default", *tool_name = "tool_use";

// Returns the template of this name in tokenizer_config.json, or the only one, whose name is
// "default". Empty if there is none.
std::string template_of(const Json& config, const char* wanted) {
  const Json* found = config.find("chat_template");
  if (!found) return "";
  if (found->is_string()) return wanted == std::string_view(default_name) ? found->get<std::string>() : "";
  if (!found->is_array()) return "";
  for (const Json& named : *found) {
    const Json *name = named.find("name"), *text = named.find("template");
    if (name && text && text->is_string() && *name == Json(wanted)) return text->get<std::string>();
  }
  return "";
}

// An answer. Templates may trim answers, so it has no blanks.
constexpr std::string_view probe = "answer0answer";

// Answers in the text of a conversation: byte ranges.
struct Answers {
  std::string text;
  std::vector<Range> ranges;
};

std::size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Returns the texts of a conversation's examples.
std::vector<Answers> answers_of(const Json::Array& messages, const Json& tools, const ChatTemplate& chat) {
  std::vector<Answers> all;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] != Json("assistant")) continue;
    if (i == 0) bad_input("the first message is one of the assistant: begin with one of the user");
    const auto first = messages.begin();
    const std::string before = chat.text({first, first + static_cast<std::ptrdiff_t>(i)}, true, tools);
    std::string text = chat.text({first, first + static_cast<std::ptrdiff_t>(i) + 1}, false, tools);
    std::size_t begin = common_prefix(before, text);
    // The end of the prompt may differ, such as an opened <think>, but not the message before it.
    if (begin < before.size()) {
      // The answer may begin with the same characters by chance.
      Json::Array otherwise(first, first + static_cast<std::ptrdiff_t>(i) + 1);
      otherwise.back()["content"] = std::string(probe);
      begin = std::min(begin, common_prefix(before, chat.text(otherwise, false, tools)));
      const std::string bare = chat.text({first, first + static_cast<std::ptrdiff_t>(i)}, false, tools);
      if (begin < common_prefix(before, bare))
        bad_input(
            "the template writes the messages before message {} differently once it follows: its loss mask is not known",
            i + 1);
    }
    const bool continues = !all.empty() && before.starts_with(all.back().text);
    if (!continues) all.emplace_back();
    all.back().ranges.push_back({static_cast<Index>(begin), std::ssize(text)});
    all.back().text = std::move(text);
  }
  if (all.empty()) bad_input("no message is one of the assistant: nothing is left to learn");
  return all;
}

Json::Array messages_of(const Json& conversation) {
  for (const Json& message : conversation["messages"])
    if (!message["role"].is_string()) bad_input("the role of a message is no string");
  return conversation["messages"].elements();
}

// Returns the number of leading ids of a text that come before byte `cut`.
// shared: whether a token with bytes on both sides of `cut` counts
std::size_t ids_before(std::string_view text, Index cut, bool shared, const std::vector<std::int32_t>& ids,
                       const Tokenizer& tokenizer) {
  if (cut == std::ssize(text)) return ids.size();
  std::vector<std::int32_t> alone, rest;
  tokenizer.encode(text.substr(0, static_cast<std::size_t>(cut)), alone);
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(alone, ids).in1 - alone.begin());
  if (same == alone.size()) return same;
  // The end of the cut text has other ids than in the whole text. "\n\n", for instance, may be one
  // token at the end of a text alone.
  tokenizer.encode(text.substr(static_cast<std::size_t>(cut)), rest);
  const auto after = static_cast<std::size_t>(
      std::mismatch(rest.rbegin(), rest.rend(), ids.rbegin(), ids.rend()).first - rest.rbegin());
  return after == rest.size() || shared ? std::max(same, ids.size() - after) : same;
}

}  // namespace

bool has_chat_template(const fs::path& folder) {
  return file_exists(folder / chat_template_name) || !template_of(config_of(folder), default_name).empty();
}

ChatTemplate::ChatTemplate(const fs::path& folder, const fs::path& tokens) : special_tokens_(Json::object()) {
  const fs::path file = folder / chat_template_name;
  const bool own_file = file_exists(file);
  const Json named = own_file ? Json::object() : config_of(folder);
  source_ = own_file ? read_file(file) : template_of(named, default_name);
  if (source_.empty()) bad_input("{} has no chat template: write one into {}", folder.string(), file.string());
  const Json config = config_of(tokens);
  for (const Json::Member& member : config.members()) {
    if (!member.name.ends_with("_token")) continue;
    const Json* content = member.value.is_object() ? member.value.find("content") : &member.value;
    if (content && content->is_string()) special_tokens_[member.name] = *content;
  }
  template_.emplace((own_file ? file : folder / huggingface_config_name).string(), source_);
  const fs::path tool_file = folder / "additional_chat_templates" / "tool_use.jinja";
  if (own_file && file_exists(tool_file))
    tool_template_.emplace(tool_file.string(), read_file(tool_file));
  else if (const std::string text = template_of(named, tool_name); !text.empty())
    tool_template_.emplace((folder / huggingface_config_name).string() + ", tool_use", text);
}

std::string ChatTemplate::text(const Json::Array& messages, bool prompt, const Json& tools) const {
  Json variables = special_tokens_;
  variables["messages"] = Json::array(messages);
  variables["add_generation_prompt"] = prompt;
  variables["tools"] = tools;
  variables["documents"] = Json();
  return (tool_template_ && !tools.is_null() ? *tool_template_ : *template_).render(variables);
}

std::string ChatTemplate::after_answer(const Json::Array& messages) const {
  Json::Array all = messages;
  all.push_back({{"role", "assistant"}, {"content", std::string(probe)}});
  const std::string whole = text(all, false);
  const std::size_t at = whole.rfind(probe);
  return at == whole.npos ? "" : whole.substr(at + probe.size());
}

std::vector<Example> examples_of(const Json& conversation, const ChatTemplate* chat, const Tokenizer& tokenizer) {
  std::vector<Answers> texts;
  try {
    const Json* tools = conversation.find("tools");
    if (conversation.contains("messages")) {
      if (!chat) bad_input("'messages' needs a chat template: give one with --template hf:FOLDER");
      texts = answers_of(messages_of(conversation), tools ? *tools : Json(), *chat);
    } else if (conversation.contains("prompt") && conversation.contains("completion")) {
      const auto prompt = conversation["prompt"].get<std::string>();
      const auto completion = conversation["completion"].get<std::string>();
      if (completion.empty()) bad_input("'completion' is empty: nothing is left to learn");
      if (chat)
        texts = answers_of(Json::Array{Json{{"role", "user"}, {"content", prompt}},
                                       Json{{"role", "assistant"}, {"content", completion}}},
                           tools ? *tools : Json(), *chat);
      else
        texts.push_back({prompt + completion, {{std::ssize(prompt), std::ssize(prompt) + std::ssize(completion)}}});
    } else {
      bad_input("there is neither 'messages' nor 'prompt' and 'completion': write one of them");
    }
  } catch (const JsonError& e) {
    bad_input("a conversation is {}", e.what());
  }
  std::vector<Example> examples;
  for (const Answers& answers : texts) {
    Example& example = examples.emplace_back();
    tokenizer.encode(answers.text, example.ids);
    example.counted.resize(example.ids.size());
    for (const Range& range : answers.ranges) {
      const std::size_t begin = ids_before(answers.text, range.begin, false, example.ids, tokenizer);
      const std::size_t end = ids_before(answers.text, range.end, true, example.ids, tokenizer);
      for (std::size_t i = begin; i < end; ++i) example.counted[i] = true;
      example.counted_bytes += range.end - range.begin;
    }
    if (std::ranges::none_of(example.counted, std::identity()))
      bad_input("the answers have no tokens: nothing is left to learn");
    if (example.ids.back() != tokenizer.end_of_text()) {
      example.ids.push_back(tokenizer.end_of_text());
      example.counted.push_back(true);
    }
  }
  return examples;
}

}  // namespace sy
