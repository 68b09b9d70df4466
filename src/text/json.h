// How JSON is written, for all who write it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sy {

// With a line end. Bytes that are no UTF-8, as paths and generated text may hold, become U+FFFD; what is not finite, null.
template <class Json>
std::string json_text(const Json& json, int indent = 2) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace sy
