#include "tests/fuzz/header_mutator.h"

#include <algorithm>
#include <cctype>
#include <iterator>

namespace cedar::test {
namespace {

constexpr std::string_view kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "null",
                                        "true",
                                        "-1",
                                        "0",
                                        "1e9",
                                        "1e999",
                                        "0.5",
                                        "[]",
                                        "{}",
                                        "\"a\"",
                                        "\\u0000",
                                        "\xff",
                                        "\"__metadata__\"",
                                        "\"dtype\"",
                                        "\"shape\"",
                                        "\"data_offsets\"",
                                        "\"F32\"",
                                        "\"I8\"",
                                        "9223372036854775807",
                                        "18446744073709551615",
                                        "18446744073709551616",
                                        "4294967296",
                                        "[[[[[[[[",
                                        "\"t\":{},"};
constexpr std::string_view kNumbers[] = {"0",
                                         "1",
                                         "2",
                                         "3",
                                         "-1",
                                         "8",
                                         "255",
                                         "4096",
                                         "65536",
                                         "2147483648",
                                         "4294967295",
                                         "1099511627776",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "1e3",
                                         "0.25"};
constexpr size_t kLengthBytes = 8;

std::string with_length(const std::string& header, const std::string& payload) {
  std::string file;
  for (size_t i = 0; i < kLengthBytes; ++i)
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + payload;
}

}  // namespace

std::string_view HeaderMutator::token() { return kTokens[below(std::size(kTokens))]; }

void HeaderMutator::replace_number(std::string& text) {
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto start = text.begin() + static_cast<std::ptrdiff_t>(below(text.size()));
  const auto first = std::find_if(start, text.end(), is_digit);
  if (first == text.end()) return;
  const auto last = std::find_if_not(first, text.end(), is_digit);
  text.replace(first, last, kNumbers[below(std::size(kNumbers))]);
}

void HeaderMutator::change(std::string& text) {
  if (text.empty()) text = "{}";
  const size_t at = below(text.size());
  const size_t length = 1 + below(std::min<size_t>(text.size() - at, 40));
  switch (below(7)) {
    case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
    case 1: text[at] = static_cast<char>(below(256)); break;
    case 2: text.erase(at, length); break;
    case 3: text.insert(below(text.size() + 1), text.substr(at, length)); break;
    case 4: text.insert(at, token()); break;
    default: replace_number(text); break;  // the likeliest to pass the JSON parser
  }
}

std::string HeaderMutator::mutate(std::string text) {
  for (size_t changes = 1 + below(4); changes > 0; --changes) change(text);
  return text;
}

std::string HeaderMutator::mutate_file(const std::string& file) {
  size_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= size_t{static_cast<unsigned char>(file[i])} << (8 * i);
  }
  const std::string header = file.substr(kLengthBytes, header_bytes);
  const std::string payload = file.substr(kLengthBytes + header_bytes);
  switch (below(8)) {
    case 0: return mutate(file);
    case 1: return file.substr(0, below(file.size()));
    case 2: return with_length(header, payload.substr(0, below(payload.size() + 1)));
    default: return with_length(mutate(header), payload);
  }
}

}  // namespace cedar::test
