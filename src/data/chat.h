// Conversations as training examples, and the chat template of a tokenizer.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/data/tokenizer.h"
#include "src/templates/template.h"
#include "src/text/json.h"

namespace sy {

constexpr const char* chat_template_name = "chat_template.jinja";

// The chat template of a tokenizer, as Hugging Face's programs store it.
class ChatTemplate {
 public:
  // The template is chat_template.jinja of `folder`, otherwise `chat_template` of its
  // tokenizer_config.json. The texts of special tokens, such as bos_token, are those of the
  // tokenizer_config.json of `tokens`, if it exists. Conversations with tools have the template
  // that is named tool_use, if there is one.
  // Throws InputError that names the file if there is no template, or if it does not parse.
  ChatTemplate(const std::filesystem::path& folder, const std::filesystem::path& tokens);

  // Returns the text of messages, an array of {"role", "content"}. tools: null if there are none.
  // prompt: the text ends where an answer begins. Throws InputError.
  std::string text(const Json::Array& messages, bool prompt, const Json& tools = {}) const;
  // Returns the text that follows an answer, such as "<|im_end|>\n". Empty if there is none.
  std::string after_answer(const Json::Array& messages) const;
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  Json special_tokens_;
  std::optional<Template> template_, tool_template_;
};
// Returns whether a folder has a chat template.
bool has_chat_template(const std::filesystem::path& folder);

// A document, and the tokens that a loss counts.
struct Example {
  std::vector<std::int32_t> ids;
  std::vector<bool> counted;  // of each id
  Index counted_bytes = 0;    // of the text that the counted ids stand for, without end_of_text
};

// Returns the examples of a conversation, an object with "prompt" and "completion", or with
// "messages" and perhaps "tools". Losses count the answers of the assistant alone.
//
// With a template, a prompt and its completion are a message of the user and one of the assistant.
// An answer reaches from the end of its prompt to the end of its message, as the template writes
// both. If the template writes earlier messages differently once others follow, each answer is an
// example of its own, after the text that the model sees before it. Otherwise all are one.
// Messages after the last answer are left out. Examples end with end_of_text.
// chat: nullptr joins prompt and completion.
// Throws InputError that says what is wrong.
std::vector<Example> examples_of(const Json& conversation, const ChatTemplate* chat, const Tokenizer& tokenizer);

}  // namespace sy
