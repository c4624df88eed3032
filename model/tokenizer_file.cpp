#include "model/tokenizer_file.h"

#include <optional>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/byte_alphabet.h"
#include "model/pretokenizer.h"
#include "model/strict_json.h"

namespace cedar::model {
namespace {

using nlohmann::json;

/// Tables are indexed by id, so a huge id in a damaged file must not become a huge allocation.
constexpr int64_t kMaxTokenId = (1 << 20) - 1;

Error refuse(const std::string& key, const std::string& problem) {
  return make_error(Errc::invalid_config, "tokenizer." + key + ": " + problem);
}

Error refuse_value(const std::string& key, const std::string& expected, const json& found) {
  return refuse(key, "expected " + expected + ", got " + short_text(found));
}

/// Null when absent: the file format treats both alike.
const json& member(const json& object, const char* key) {
  static const json kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

Status check_object(const json& value, const std::string& key) {
  if (!value.is_object()) return refuse_value(key, "an object", value);
  return {};
}

/// An option that would change the result may be absent, null or have the neutral value.
Status check_neutral(const json& object, const std::string& path, const char* key,
                     const json& neutral) {
  const json& value = member(object, key);
  if (value.is_null() || value == neutral) return {};
  return refuse_value(path + "." + key, neutral.dump(), value);
}

Status check_type(const json& object, const std::string& path, const char* type) {
  CEDAR_CHECK_OK(check_object(object, path));
  const json& found = member(object, "type");
  if (found != type) return refuse_value(path + ".type", type, found);
  return {};
}

Status check_normalizer(const json& value) {
  if (value.is_null()) return {};
  CEDAR_CHECK_OK(check_type(value, "normalizer", "Sequence"));
  const json& steps = member(value, "normalizers");
  if (!steps.is_array() || !steps.empty()) {
    return refuse_value("normalizer.normalizers", "an empty list (text is used as it is)", steps);
  }
  return {};
}

Status check_split(const json& step, const std::string& path, std::string_view pattern) {
  CEDAR_CHECK_OK(check_type(step, path, "Split"));
  const json& holder = member(step, "pattern");
  CEDAR_CHECK_OK(check_object(holder, path + ".pattern"));
  const json& regex = member(holder, "Regex");
  if (!regex.is_string() || canonical_pattern(regex.get_ref<const std::string&>()) != pattern) {
    return refuse_value(path + ".pattern.Regex", json(pattern).dump(), regex);
  }
  const json& behavior = member(step, "behavior");
  if (behavior != "Isolated") return refuse_value(path + ".behavior", "Isolated", behavior);
  return check_neutral(step, path, "invert", false);
}

Status check_pre_tokenizer(const json& value) {
  CEDAR_CHECK_OK(check_type(value, "pre_tokenizer", "Sequence"));
  const json& steps = member(value, "pretokenizers");
  const std::vector<std::string_view> patterns = pretokenizer_patterns();
  const std::string list = "pre_tokenizer.pretokenizers";
  if (!steps.is_array() || steps.size() != patterns.size() + 1) {
    return refuse_value(list, std::to_string(patterns.size()) + " Split steps and one ByteLevel",
                        steps);
  }
  for (size_t i = 0; i < patterns.size(); ++i) {
    CEDAR_CHECK_OK(check_split(steps[i], list + "[" + std::to_string(i) + "]", patterns[i]));
  }
  const std::string last = list + "[" + std::to_string(patterns.size()) + "]";
  CEDAR_CHECK_OK(check_type(steps.back(), last, "ByteLevel"));
  // Absent values would mean true for both.
  for (const char* key : {"add_prefix_space", "use_regex"}) {
    const json& flag = member(steps.back(), key);
    if (flag != false) return refuse_value(last + "." + key, "false", flag);
  }
  return {};
}

Status check_pipeline(const json& file) {
  CEDAR_CHECK_OK(check_neutral(file, "", "truncation", nullptr));
  CEDAR_CHECK_OK(check_neutral(file, "", "padding", nullptr));
  CEDAR_CHECK_OK(check_normalizer(member(file, "normalizer")));
  CEDAR_CHECK_OK(check_pre_tokenizer(member(file, "pre_tokenizer")));
  // A byte-level post-processor only trims offsets; any other kind may add tokens.
  if (const json& post = member(file, "post_processor"); !post.is_null()) {
    CEDAR_CHECK_OK(check_type(post, "post_processor", "ByteLevel"));
  }
  return check_type(member(file, "decoder"), "decoder", "ByteLevel");
}

Status check_model_options(const json& model) {
  CEDAR_CHECK_OK(check_type(model, "model", "BPE"));
  CEDAR_CHECK_OK(check_neutral(model, "model", "dropout", 0));
  CEDAR_CHECK_OK(check_neutral(model, "model", "unk_token", nullptr));
  CEDAR_CHECK_OK(check_neutral(model, "model", "continuing_subword_prefix", ""));
  CEDAR_CHECK_OK(check_neutral(model, "model", "end_of_word_suffix", ""));
  CEDAR_CHECK_OK(check_neutral(model, "model", "fuse_unk", false));
  CEDAR_CHECK_OK(check_neutral(model, "model", "byte_fallback", false));
  return check_neutral(model, "model", "ignore_merges", false);
}

class Reader {
 public:
  Result<TokenizerFile> read(const json& file) {
    CEDAR_CHECK_OK(check_object(file, "json"));
    CEDAR_CHECK_OK(check_pipeline(file));
    const json& model = member(file, "model");
    CEDAR_CHECK_OK(check_model_options(model));
    CEDAR_CHECK_OK(read_added(member(file, "added_tokens")));
    CEDAR_CHECK_OK(read_vocabulary(member(model, "vocab")));
    CEDAR_CHECK_OK(place_added());
    CEDAR_CHECK_OK(find_byte_tokens());
    CEDAR_CHECK_OK(read_merges(member(model, "merges")));
    return std::move(out_);
  }

 private:
  static Result<TokenId> read_id(const json& value, const std::string& key) {
    if (!value.is_number_integer() || value < 0 || value > kMaxTokenId) {
      return refuse_value(key, "an id from 0 to " + std::to_string(kMaxTokenId), value);
    }
    return value.get<TokenId>();
  }

  Status read_added(const json& list) {
    if (list.is_null()) return {};
    if (!list.is_array()) return refuse_value("added_tokens", "a list", list);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = "added_tokens[" + std::to_string(i) + "]";
      CEDAR_CHECK_OK(check_object(list[i], path));
      CEDAR_CHECK_OK(read_added_token(list[i], path));
    }
    return {};
  }

  Status read_added_token(const json& entry, const std::string& path) {
    AddedToken token;
    CEDAR_TRY(token.id, read_id(member(entry, "id"), path + ".id"));
    const json& content = member(entry, "content");
    if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
      return refuse_value(path + ".content", "a text", content);
    }
    token.spelling = content.get<std::string>();
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      CEDAR_CHECK_OK(check_neutral(entry, path, key, false));
    }
    CEDAR_TRY(token.special, read_flag(entry, path, "special"));
    CEDAR_TRY(token.normalized, read_flag(entry, path, "normalized"));
    if (!added_spellings_.emplace(token.spelling, token.id).second) {
      return refuse(path + ".content", short_text(content) + " is listed twice");
    }
    out_.added.push_back(std::move(token));
    return {};
  }

  static Result<bool> read_flag(const json& entry, const std::string& path, const char* key) {
    const json& value = member(entry, key);
    if (!value.is_boolean()) return refuse_value(path + "." + key, "true or false", value);
    return value.get<bool>();
  }

  Status read_vocabulary(const json& vocab) {
    CEDAR_CHECK_OK(check_object(vocab, "model.vocab"));
    const auto& entries = vocab.get_ref<const json::object_t&>();
    ids_.reserve(entries.size());
    for (const auto& [text, id_value] : entries) {
      const std::string path = "model.vocab[" + short_text(text) + "]";
      CEDAR_TRY(const TokenId id, read_id(id_value, path));
      const std::optional<std::string> bytes = byte_alphabet_decode(text);
      // BOS, EOS and PAD stand in the vocabulary but are matched as added tokens only.
      const auto added = added_spellings_.find(text);
      if (added != added_spellings_.end() && added->second != id) {
        return refuse(path, "has id " + std::to_string(id) + " here and " +
                                std::to_string(added->second) + " among the added tokens");
      }
      if (!bytes && added == added_spellings_.end()) {
        return refuse(path, "holds a character outside the byte alphabet and is no added token");
      }
      // Merging could produce the token for these bytes, which its spelling would not give back.
      if (bytes && added != added_spellings_.end() && *bytes != text) {
        return refuse(path, "stands for other bytes than its spelling among the added tokens");
      }
      CEDAR_CHECK_OK(define(id, TokenKind::ordinary, text, bytes.value_or(text), path));
      ids_.emplace(text, id);
    }
    return {};
  }

  Status define(TokenId id, TokenKind kind, const std::string& text, std::string bytes,
                const std::string& path) {
    const auto i = static_cast<size_t>(id);
    if (i >= out_.kinds.size()) {
      out_.kinds.resize(i + 1, TokenKind::undefined);
      out_.vocabulary.resize(i + 1);
      out_.token_bytes.resize(i + 1);
    }
    if (out_.kinds[i] != TokenKind::undefined && out_.vocabulary[i] != text) {
      return refuse(path, "id " + std::to_string(id) + " already belongs to " +
                              short_text(out_.vocabulary[i]));
    }
    out_.kinds[i] = kind;
    out_.vocabulary[i] = text;
    out_.token_bytes[i] = std::move(bytes);
    return {};
  }

  Status place_added() {
    for (const AddedToken& token : out_.added) {
      const std::string path = "added_tokens[" + short_text(token.spelling) + "]";
      CEDAR_CHECK_OK(define(token.id, TokenKind::added, token.spelling, token.spelling, path));
    }
    return {};
  }

  Status find_byte_tokens() {
    for (size_t byte = 0; byte < out_.byte_tokens.size(); ++byte) {
      const std::string name = byte_alphabet_char(static_cast<unsigned char>(byte));
      const auto it = ids_.find(name);
      if (it == ids_.end())
        return refuse("model.vocab", "no token for the single byte " + std::to_string(byte));
      out_.byte_tokens[byte] = it->second;
    }
    return {};
  }

  Status read_merges(const json& list) {
    if (!list.is_array()) return refuse_value("model.merges", "a list", list);
    std::unordered_map<uint64_t, size_t> ranks;
    ranks.reserve(list.size());
    out_.merges.reserve(list.size());
    for (size_t rank = 0; rank < list.size(); ++rank) {
      const std::string path = "model.merges[" + std::to_string(rank) + "]";
      CEDAR_TRY(const auto sides, merge_sides(list[rank], path));
      MergeRule rule;
      CEDAR_TRY(rule.left, merge_token(sides.first, path));
      CEDAR_TRY(rule.right, merge_token(sides.second, path));
      CEDAR_TRY(rule.result, merge_token(sides.first + sides.second, path));
      const uint64_t pair =
          static_cast<uint64_t>(rule.left) << 32 | static_cast<uint32_t>(rule.right);
      const auto [first, is_new] = ranks.emplace(pair, rank);
      if (!is_new)
        return refuse(path, "repeats the pair of merge " + std::to_string(first->second));
      out_.merges.push_back(rule);
    }
    return {};
  }

  /// "left right", or ["left", "right"] as newer files write it.
  static Result<std::pair<std::string, std::string>> merge_sides(const json& entry,
                                                                 const std::string& path) {
    if (entry.is_string()) {
      const auto& text = entry.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        return std::pair(text.substr(0, space), text.substr(space + 1));
      }
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      return std::pair(entry[0].get<std::string>(), entry[1].get<std::string>());
    }
    return refuse_value(path, "two tokens with one space between", entry);
  }

  Result<TokenId> merge_token(const std::string& text, const std::string& path) const {
    const auto it = ids_.find(text);
    if (it == ids_.end() || text.empty())
      return refuse(path, short_text(text) + " is not in the vocabulary");
    return it->second;
  }

  TokenizerFile out_;
  std::unordered_map<std::string_view, TokenId> ids_;  // keys lie in the document
  std::unordered_map<std::string, TokenId> added_spellings_;
};

}  // namespace

Result<TokenizerFile> read_tokenizer_file(std::string_view json_text) {
  auto document = parse_strict_json(json_text, Errc::invalid_config);
  if (!document) return make_error(Errc::invalid_config, "tokenizer: " + document.error().context);
  return Reader().read(*document);
}

}  // namespace cedar::model
