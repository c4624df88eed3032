// Design: every step of the folding works on one code point at a time. NFD after NFKC is NFKD; its
// canonical reordering moves combining marks only, and these are removed; lower-casing is the
// reference's, code point by code point without the context of a final sigma. So no composed string
// is ever needed.
//
// utf8proc's Unicode version may differ from the reference's. It can only matter for a token that
// holds a code point whose decomposition, category or lower case changed, and then the number of
// distinct keys or the ids of the golden data would differ; make_token_compression refuses another
// number.

#include "model/token_compression.h"

#include <array>
#include <unordered_map>

#include <utf8proc.h>

#include "model/engram_layout.h"
#include "model/tokenizer.h"
#include "model/unicode_classes.h"
#include "model/utf8.h"

namespace cedar::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_combining_mark(utf8proc_int32_t code) {
  const utf8proc_category_t category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

void append_folded(std::u32string& out, char32_t code) {
  // The longest compatibility decomposition has 18 code points (U+FDFA).
  std::array<utf8proc_int32_t, 32> parts;
  int boundary = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(code), parts.data(),
      static_cast<utf8proc_ssize_t>(parts.size()),
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT), &boundary);
  CEDAR_ASSERT(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
               "decomposition of U+" + std::to_string(static_cast<uint32_t>(code)));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (is_combining_mark(parts[i])) continue;
    out.push_back(static_cast<char32_t>(utf8proc_tolower(parts[i])));
  }
}

bool is_blank(char32_t c) { return c == U' ' || c == U'\t' || c == U'\r' || c == U'\n'; }
bool is_white_space(char32_t c) { return (char_class(c) & kWhiteSpace) != 0; }

std::u32string collapse_blanks(const std::u32string& text) {
  std::u32string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_blank(text[i])) out.push_back(text[i]);
    else if (i == 0 || !is_blank(text[i - 1])) out.push_back(U' ');
  }
  return out;
}

/// The key under which a token is folded with others.
std::string token_key(const Tokenizer& tokenizer, TokenId id) {
  std::string text = tokenizer.decode(std::span(&id, 1));
  // Part of a character (or U+FFFD itself): such tokens stay apart, under their spelling in the
  // file.
  if (text.find(kReplacement) != std::string::npos)
    return std::string(tokenizer.vocabulary_string(id));
  std::string folded = fold_token_text(text);
  return folded.empty() ? text : folded;
}

}  // namespace

std::string fold_token_text(std::string_view text) {
  std::u32string folded;
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    append_folded(folded, step.code);
    text.remove_prefix(step.length);
  }
  folded = collapse_blanks(folded);
  if (folded == U" ") return " ";
  size_t begin = 0, end = folded.size();
  while (begin < end && is_white_space(folded[begin])) ++begin;
  while (end > begin && is_white_space(folded[end - 1])) --end;
  std::string out;
  for (size_t i = begin; i < end; ++i) append_utf8(out, folded[i]);
  return out;
}

Result<TokenCompression> make_token_compression(const Tokenizer& tokenizer,
                                                const ModelConfig& config) {
  std::unordered_map<std::string, int32_t> ids;
  std::vector<int32_t> map;
  map.reserve(static_cast<size_t>(tokenizer.size()));
  for (TokenId id = 0; id < tokenizer.size(); ++id) {
    const auto next = static_cast<int32_t>(ids.size());
    map.push_back(ids.emplace(token_key(tokenizer, id), next).first->second);
  }
  const auto distinct = static_cast<int32_t>(ids.size());
  if (distinct != config.engram_compressed_vocab_size) {
    return make_error(Errc::invalid_config,
                      "engram_compressed_vocab_size: the config says " +
                          std::to_string(config.engram_compressed_vocab_size) +
                          ", the tokenizer's texts fold to " + std::to_string(distinct));
  }
  return TokenCompression(std::move(map), distinct);
}

}  // namespace cedar::model
