// Stands in for libFuzzer where there is none: runs every seed as it is, then mutations of the seeds, the same ones in
// every run. Usage: PROGRAM MUTATIONS SEED... A finding is a crash, a sanitizer's report or a broken invariant.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace std::string_view_literals;

/// Pieces that readers of lengths, numbers and JSON tend to trip over.
constexpr std::string_view kPieces[] = {"0"sv,
                                        "-1"sv,
                                        "1e999"sv,
                                        "9223372036854775807"sv,
                                        "18446744073709551616"sv,
                                        "null"sv,
                                        "{}"sv,
                                        "[]"sv,
                                        "\"\""sv,
                                        "[[[[[[[["sv,
                                        "\\ud800"sv,
                                        "\""sv,
                                        "}"sv,
                                        "]"sv,
                                        "\\u0000"sv,
                                        ","sv,
                                        ":"sv,
                                        "\xff"sv,
                                        "\xf0\x9f\x98"sv,
                                        "\xff\xff\xff\xff\xff\xff\xff\xff"sv,
                                        "\0\0\0\0"sv};

constexpr std::string_view kValues[] = {"0"sv,
                                        "1"sv,
                                        "-1"sv,
                                        "2"sv,
                                        "3"sv,
                                        "7"sv,
                                        "0.5"sv,
                                        "1e999"sv,
                                        "65536"sv,
                                        "2147483648"sv,
                                        "9223372036854775807"sv,
                                        "18446744073709551616"sv,
                                        "null"sv,
                                        "true"sv,
                                        "[]"sv,
                                        "\"1\""sv};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return c == '_' || is_digit(c) || (c >= 'a' && c <= 'z'); }

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string next(size_t number) {
    std::string bytes = seeds_[number % seeds_.size()];
    for (size_t step = 1 + below(3); step != 0; --step) {
      if (bytes.empty()) bytes = "{";
      // The second kind keeps JSON valid more often than not, so that what is behind the parser is reached.
      if (below(2) == 0) {
        mutate_bytes(bytes);
      } else {
        mutate_word(bytes);
      }
    }
    return bytes;
  }

 private:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  template <size_t n>
  std::string_view one_of(const std::string_view (&list)[n]) {
    return list[below(n)];
  }

  void mutate_bytes(std::string& bytes) {
    const size_t at = below(bytes.size());
    const size_t length = std::min(bytes.size() - at, 1 + below(1 + below(64)));
    switch (below(7)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
      case 1: bytes[at] = static_cast<char>(random_()); break;
      case 2: bytes.erase(at, length); break;
      case 3: bytes.insert(at, std::string(bytes, at, length)); break;
      case 4: bytes.insert(at, one_of(kPieces)); break;
      case 5: bytes.resize(at); break;
      default: {
        const std::string& other = seeds_[below(seeds_.size())];
        bytes.insert(at, other, below(other.size()), 1 + below(200));
      }
    }
  }

  /// Replaces a number by an odd value, or a word by one from elsewhere.
  void mutate_word(std::string& bytes) {
    if (below(2) == 0) {
      const auto [at, length] = find(bytes, is_digit);
      bytes.replace(at, length, one_of(kValues));
      return;
    }
    const std::string& other = seeds_[below(seeds_.size())];
    const auto [from, count] = find(other, is_word);
    const auto [at, length] = find(bytes, is_word);
    bytes.replace(at, length, std::string(other, from, count));
  }

  /// Start and length of the first run at or after a random place whose characters satisfy `inside`.
  template <class Inside>
  std::pair<size_t, size_t> find(const std::string& bytes, Inside inside) {
    const auto begin = std::find_if(
        bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size())), bytes.end(), inside);
    const auto end = std::find_if_not(begin, bytes.end(), inside);
    return {static_cast<size_t>(begin - bytes.begin()), static_cast<size_t>(end - begin)};
  }

  std::vector<std::string> seeds_;
  std::mt19937 random_{20260101};
};

/// On the heap with exactly the input's size: AddressSanitizer then sees a read past its end.
void run(const std::string& bytes) {
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MUTATIONS SEED...\n", argv[0]);
    return 2;
  }
  std::vector<std::string> seeds;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!file || seeds.back().empty()) {
      std::fprintf(stderr, "%s: cannot read %s\n", argv[0], argv[i]);
      return 2;
    }
    run(seeds.back());
  }
  run("");
  const size_t mutations = std::strtoul(argv[1], nullptr, 10);
  Mutator mutator(std::move(seeds));
  for (size_t i = 0; i < mutations; ++i) run(mutator.next(i));
  std::printf("%d seeds, %zu mutations\n", argc - 2, mutations);
  return 0;
}
