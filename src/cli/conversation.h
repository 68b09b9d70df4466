// A conversation of a user with a model, of `generate --chat`.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/trained.h"
#include "src/data/chat.h"
#include "src/generate/generate.h"
#include "src/text/table.h"

#include <fmt/core.h>

namespace sy {

// Prints text as it is generated. A terminal gets whole characters, and no control characters.
class Shown {
 public:
  void add(std::string_view text) {
    pending_ += text;
    show(terminal_ ? whole_characters(pending_) : pending_.size());
  }
  // Adds the end of `text` that the texts of earlier calls, which begin it, do not have.
  void extend(std::string_view text) {
    if (text.size() > bytes_) add(text.substr(bytes_));
    bytes_ = std::max(bytes_, text.size());
  }
  // Ends the text and its line.
  void finish() {
    show(pending_.size());
    fmt::print("\n");
    bytes_ = 0;
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
  std::size_t bytes_ = 0;  // of the text that extend() has added
};

// Returns the text that `ids` add to a prompt, whose own text has `before` bytes. They are decoded
// after the prompt, since decoders may treat the first token differently.
std::string added_text(const Tokenizer& tokenizer, std::vector<std::int32_t> prompt, std::size_t before,
                       std::span<const std::int32_t> ids);
// Returns the part of a generated text to display: everything before a stop string. While
// generation goes on, also without a suffix that may become one.
std::string displayed_text(const std::string& text, const std::vector<std::string>& stops, bool goes_on);

// Returns the template of --template. Otherwise that of the data set of --data, of the run's
// tokenizer, or of the imported model. Throws InputError if there is none.
ChatTemplate chat_template_of(const Trained& trained, const po::variables_map& arguments);

struct Conversation {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat;
  std::string system;              // the first message; empty if there is none
  std::vector<std::string> stops;  // strings that end an answer
  Index positions;                 // tokens of the whole conversation at most
};

// Reads messages from the first rank's standard input, one to a line, and prints the answers, until
// the input ends. json: prints all messages as JSON at the end instead. Collective.
// Throws InputError on all ranks if the conversation is too long or its template does not render.
void converse(Comm& world, Engine& engine, const Conversation& conversation, const GenerateOptions& options, bool json);

}  // namespace sy
