#include "apps/text_table.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "core/check.h"

namespace cedar::apps {
namespace {

bool is_number(const std::string& cell) {
  return cell.find_first_not_of("0123456789.,-") == std::string::npos;
}

}  // namespace

std::string with_commas(int64_t value) {
  std::string text = std::to_string(value);
  const size_t first_digit = value < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first_digit + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string fixed(double value, int decimals) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(decimals) << value;
  return out.str();
}

void TextTable::add(std::vector<std::string> cells) {
  CEDAR_ASSERT(cells.size() == rows_.front().size(), std::to_string(cells.size()) + " cells");
  rows_.push_back(std::move(cells));
}

void TextTable::print(std::ostream& out) const {
  const size_t columns = rows_.front().size();
  std::vector<size_t> width(columns, 0);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows_[r][c].size());
      if (r > 0 && !is_number(rows_[r][c])) right[c] = false;
    }
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - row[c].size(), ' ');
      line += "  " + (right[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

}  // namespace cedar::apps
