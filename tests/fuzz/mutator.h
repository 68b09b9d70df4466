// Deterministic changes of inputs, for the replay of the corpora.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace sy::fuzz {

// Changes an input at random. Equal seeds and calls give equal changes on every machine.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  // Returns an input with one to three changes. others: inputs from which ranges are copied; not
  // empty.
  std::string changed(std::string input, const std::vector<std::string>& others) {
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) change(input, others[below(others.size())]);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }

  void change(std::string& input, const std::string& other) {
    static constexpr std::string_view texts[] = {"-1",
                                                 "0",
                                                 "1e999",
                                                 "-0.5",
                                                 "9223372036854775807",
                                                 "18446744073709551616",
                                                 "4294967296",
                                                 "null",
                                                 "true",
                                                 "[]",
                                                 "{}",
                                                 "\"\"",
                                                 "\"",
                                                 "[",
                                                 "}",
                                                 "\n",
                                                 "\r\n",
                                                 ",",
                                                 "=",
                                                 ":",
                                                 "../",
                                                 "\\u0000",
                                                 "\xff",
                                                 "\xef\xbf\xbd"};
    static constexpr std::array<std::uint64_t, 12> numbers = {0,
                                                              1,
                                                              2,
                                                              127,
                                                              255,
                                                              65535,
                                                              0x7fffffff,
                                                              0x80000000,
                                                              0xffffffff,
                                                              0x7fffffffffffffff,
                                                              0x8000000000000000,
                                                              0xffffffffffffffff};
    const std::size_t at = below(input.size() + 1), size = std::min(1 + below(16), input.size() - at);
    switch (below(8)) {
      case 0:  // flips a bit
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:  // sets a byte
        if (at < input.size()) input[at] = static_cast<char>(below(256));
        break;
      case 2:  // removes a range
        input.erase(at, size);
        break;
      case 3:  // cuts the input
        input.resize(at);
        break;
      case 4:  // repeats a range of another input
        if (!other.empty()) input.insert(at, other, below(other.size()), 1 + below(64));
        break;
      case 5:  // inserts a text
        input.insert(at, texts[below(std::size(texts))]);
        break;
      case 6:  // replaces a number of a text
        replace_number(input, at, texts[below(7)]);
        break;
      default: {  // replaces a binary number
        const std::uint64_t number = numbers[below(numbers.size())];
        std::memcpy(input.data() + at, &number, std::min(std::size_t{1} << below(4), input.size() - at));
      }
    }
  }

  // Replaces the first digits from `at` on.
  static void replace_number(std::string& input, std::size_t at, std::string_view number) {
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    const auto begin = std::find_if(input.begin() + static_cast<std::ptrdiff_t>(at), input.end(), is_digit);
    const auto end = std::find_if_not(begin, input.end(), is_digit);
    input.replace(begin, end, number);
  }

  std::mt19937_64 random_;
};

}  // namespace sy::fuzz
