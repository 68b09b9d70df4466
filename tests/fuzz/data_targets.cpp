// Texts, data sets, tokenizers and templates.
#include <algorithm>

#include "src/data/chat.h"
#include "src/data/dataset.h"
#include "src/data/megatron.h"
#include "src/data/stream.h"
#include "src/data/text.h"
#include "src/data/tokenizer.h"
#include "src/templates/template.h"
#include "src/tokenizers/component.h"
#include "src/tokenizers/regex.h"
#include "src/tokenizers/tokenizer_json.h"
#include "src/tokenizers/unicode.h"
#include "tests/fuzz/helpers.h"

namespace sy::fuzz {

namespace fs = std::filesystem;

namespace {

// The input is the .idx and the .bin. If the last byte of the .bin is 7, the .idx has a loss mask.
void read_indexed_tokens(Input input) {
  static Scratch scratch;
  const auto [idx, bin] = two_files(input);
  scratch.write("x.idx", idx);
  scratch.write("x.bin", bin);
  const IndexedTokens tokens(scratch.path() / "x", bin.ends_with('\7'));
  const Index documents = tokens.documents(), count = tokens.tokens();
  const std::vector<Index> begins = tokens.document_begins(0, std::min<Index>(documents + 1, 100));
  require(std::ranges::is_sorted(begins), "documents follow one another");
  if (documents > 0) {
    require(tokens.document(0).begin == 0, "the first document begins at token 0");
    require(tokens.document(documents - 1).end == count, "the last document ends with the tokens");
  }
  tokens.document_begins_in({count / 3, count});
  Attempts attempts;
  for (const Index begin : {Index{0}, std::max<Index>(0, count - 100)})
    attempts([&] {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min<Index>(count, 100)));
      tokens.read(begin, 300, ids);
      require(std::ranges::all_of(ids, [](std::int32_t id) { return id >= 0 && id < 300; }), "ids are checked");
      tokens.ignore_masked(begin, ids);
    });
  attempts.finish();
}

void read_dataset_description(Input input) {
  static Scratch scratch;
  scratch.write("dataset.ini", view_of(input));
  const DatasetDescription description = read_dataset_ini(scratch.path());
  static Scratch again;
  again.write("dataset.ini", to_ini(description));
  require(read_dataset_ini(again.path()).domains.size() == description.domains.size(), "a description is read again");
  verify_dataset(scratch.path());
}

// Decompresses a file up to a bound: a few bytes may hold a long text.
void decompress(const char* name, Input input) {
  static Scratch scratch;
  const std::unique_ptr<ByteStream> stream = open_stream(scratch.write(name, view_of(input)));
  constexpr Index most = 1 << 16;
  std::vector<char> text(1000);
  std::size_t n = text.size();
  for (Index bytes = 0; bytes < most && n == text.size(); bytes += static_cast<Index>(n)) n = stream->read(text);
  if (n < text.size()) require(stream->read(text) == 0, "after its end, a stream gives nothing");
}

void read_gzip(Input input) {
  decompress("x.gz", input);
}
void read_zstd(Input input) {
  decompress("x.zst", input);
}

// Reads JSON lines, once for a text and once for conversations.
void read_json_lines_file(Input input) {
  static Scratch scratch;
  const fs::path file = scratch.write("x.jsonl", view_of(input));
  Attempts attempts;
  for (const std::optional<std::string>& key : {std::optional<std::string>("text"), std::optional<std::string>()})
    attempts([&] {
      for_each_document({file}, {}, key, [](Document&& document) {
        require(!document.text.empty(), "documents are not empty");
        return true;
      });
    });
  attempts.finish();
}

// Reads the documents of compressed files: of a text, and of JSON lines. It stops after a document
// of the maximum size and four more.
void read_gzip_documents(Input input) {
  static Scratch scratch;
  constexpr Index most = max_document_bytes + 4 * chunk_bytes;
  Attempts attempts;
  for (const char* const name : {"x.txt.gz", "x.jsonl.gz"})
    attempts([&] {
      const fs::path file = scratch.write(name, view_of(input));
      Index bytes = 0;
      for_each_document({file}, {}, "text", [&](Document&& document) {
        require(is_json_lines(file) || document.offset == bytes, "documents follow one another");
        return (bytes += std::ssize(document.text)) < most;
      });
    });
  attempts.finish();
}

constexpr std::string_view simple_template =
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}";

// Reads a conversation, with a template and without one.
void read_conversation(Input input) {
  static Scratch scratch;
  static const ChatTemplate chat = [] {
    scratch.write(chat_template_name, simple_template);
    return ChatTemplate(scratch.path(), scratch.path());
  }();
  static const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  const std::optional<Json> conversation = Json::try_parse(view_of(input));
  if (!conversation) bad_input("no JSON");  // `prepare` parses the line
  Attempts attempts;
  const bool has_messages = conversation->contains("messages");  // which need a template
  for (const ChatTemplate* const used : {has_messages ? &chat : nullptr, &chat})
    attempts([&] {
      for (const Example& example : examples_of(*conversation, used, *tokenizer))
        require(example.ids.size() == example.counted.size(), "each id is counted or not");
    });
  attempts.finish();
}

void render_template(Input input) {
  static const Json tool = {
      {"type", "function"},
      {"function", {{"name", "add"}, {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}};
  static const Json variables = {{"messages", Json::array({Json{{"role", "system"}, {"content", "Be brief."}},
                                                           Json{{"role", "user"}, {"content", " How many wagons? "}},
                                                           Json{{"role", "assistant"}, {"content", "größer: 3"}}})},
                                 {"tools", Json::array({tool})},
                                 {"add_generation_prompt", true},
                                 {"bos_token", "<s>"},
                                 {"n", 7}};
  constexpr TemplateLimits limits = {.output_bytes = 1 << 20, .steps = 100'000, .created_bytes = 16 << 20};
  const std::string text = Template("t", view_of(input)).render(variables, limits);
  require(text.size() <= static_cast<std::size_t>(limits.output_bytes), "the text is bounded");
}

void read_tokenizer_config(Input input) {
  static Scratch scratch;
  scratch.write(huggingface_config_name, view_of(input));
  const ChatTemplate chat(scratch.path(), scratch.path());
}

constexpr std::string_view texts[] = {"Hello world", "  größer über 1234\n\n", "日本 e\xcc\x81 <|endoftext|>x\xff"};

void encode_texts_by(const auto& tokenizer, std::int32_t vocab) {
  for (const std::string_view text : texts) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(text, ids);
    require(std::ranges::all_of(ids, [&](std::int32_t id) { return id >= 0 && id < vocab; }), "ids are below vocab");
    tokenizer.decode(ids);
  }
  std::vector<std::int32_t> first(static_cast<std::size_t>(std::min(vocab, 50)));
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<std::int32_t>(i);
  tokenizer.decode(first);
}

void read_tokenizer_json(Input input) {
  static Scratch scratch;
  const TokenizerJson tokenizer(scratch.write("tokenizer.json", view_of(input)));
  encode_texts_by(tokenizer, tokenizer.vocab());
}

void match_regex(Input input) {
  try {
    const Regex regex = Regex::of(as_utf8(view_of(input)));  // a string of JSON is UTF-8
    for (const std::string_view any : texts) {
      const std::string text = as_utf8(any);
      const MatchTime time(text.size());
      std::vector<Match> matches;
      regex.find(text, matches);
      for (const Match& match : matches)
        require(match.begin <= match.end && match.end <= text.size(), "matches are within the text");
    }
  } catch (const BadComponent& e) {
    bad_input("{}", e.what());  // as the reader of tokenizer.json does
  }
}

void read_sentencepiece_model(Input input) {
  static Scratch scratch;
  const std::unique_ptr<Tokenizer> tokenizer = load_sentencepiece(scratch.write("tokenizer.model", view_of(input)));
  encode_texts_by(*tokenizer, static_cast<std::int32_t>(tokenizer->vocab()));
}

}  // namespace

std::vector<Target> data_targets() {
  return {
      {"indexed_tokens", "NAME.idx and NAME.bin of a data set", read_indexed_tokens},
      {"dataset_ini", "dataset.ini", read_dataset_description},
      {"json_lines", "NAME.jsonl of `prepare`", read_json_lines_file},
      {"gzip", "the first 64 KiB of NAME.gz", read_gzip},
      {"zstd", "the first 64 KiB of NAME.zst", read_zstd},
      {"gzip_documents", "NAME.txt.gz and NAME.jsonl.gz of `prepare`", read_gzip_documents},
      {"conversation", "a line of a file of conversations", read_conversation},
      {"chat_template", "chat_template.jinja", render_template},
      {"tokenizer_config", "tokenizer_config.json", read_tokenizer_config},
      {"tokenizer_json", "tokenizer.json", read_tokenizer_json},
      {"regex", "a regular expression of tokenizer.json", match_regex},
      {"sentencepiece", "tokenizer.model", read_sentencepiece_model},
  };
}

}  // namespace sy::fuzz
