#pragma once
// Damages texts and files in ways that keep them interesting to a parser.

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace cedar::test {

class HeaderMutator {
 public:
  explicit HeaderMutator(uint32_t seed) : random_(seed) {}

  /// One to four random changes: bytes flipped, cut or copied, numbers replaced, tokens of JSON
  /// spliced in.
  std::string mutate(std::string text);

  /// A safetensors file with damage to header, length field or payload; mostly with the length
  /// field set right again, since otherwise few files get past the first check.
  std::string mutate_file(const std::string& file);

 private:
  size_t below(size_t bound) { return random_() % bound; }
  void change(std::string& text);
  void replace_number(std::string& text);
  std::string_view token();

  std::mt19937 random_;
};

}  // namespace cedar::test
