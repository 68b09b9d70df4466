#include "src/text/error_list.h"

namespace sy {
namespace {

std::string message_of(const std::string& origin, const std::vector<std::string>& errors) {
  constexpr std::size_t most_shown = 20;
  std::string text;
  if (errors.size() > 1) text = fmt::format("{}: {} errors: correct each", origin, errors.size());
  for (std::size_t i = 0; i < std::min(errors.size(), most_shown); ++i)
    text += (text.empty() ? "" : std::string(1, next_line)) + errors[i];
  if (errors.size() > most_shown) text += fmt::format("{}and {} more", next_line, errors.size() - most_shown);
  return text;
}

}  // namespace

InputErrors::InputErrors(std::string from, std::vector<std::string> all)
    : InputError(message_of(from, all)), origin(std::move(from)), errors(std::move(all)) {}

void ErrorList::append(const std::string& origin, const std::string& error) {
  if (std::find(errors_.begin(), errors_.end(), error) != errors_.end()) return;
  origin_ = errors_.empty() || origin_ == origin ? origin : command_;
  errors_.push_back(error);
}

void ErrorList::append(const InputError& error) {
  const auto* several = dynamic_cast<const InputErrors*>(&error);
  if (!several) return append(command_, error.what());
  for (const std::string& e : several->errors) append(several->origin, e);
}

void ErrorList::raise() const {
  if (!errors_.empty()) throw InputErrors(origin_, errors_);
}

}  // namespace sy
