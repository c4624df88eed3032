#pragma once
// Aligned columns for terminals.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace cedar::apps {

/// "510,286,023,000"
std::string with_commas(int64_t value);
/// Fixed decimals: fixed(0.25327, 3) is "0.253".
std::string fixed(double value, int decimals);

/// Columns whose every cell below the header is a number stand right, others left.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  /// REQUIRES: as many cells as the header has.
  void add(std::vector<std::string> cells);
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cedar::apps
