#include "model/tokenizer.h"

#include "core/text_file.h"
#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/tokenizer_file.h"

namespace cedar::model {

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile tables);
  Impl(const Impl&) = delete;  // `words` points into `file`
  Impl& operator=(const Impl&) = delete;

  std::string_view bytes(TokenId id) const { return file.token_bytes[static_cast<size_t>(id)]; }
  TokenKind kind(TokenId id) const {
    return id < 0 || id >= static_cast<int64_t>(file.kinds.size())
               ? TokenKind::undefined
               : file.kinds[static_cast<size_t>(id)];
  }

  TokenizerFile file;
  std::vector<bool> special;  // by id
  // Added tokens are cut out in two passes over the text: those that are matched before
  // normalisation, then in the remaining parts those that are matched after it (even though nothing
  // is normalised here).
  AddedTokenTrie raw_tokens, normalized_tokens;
  BpeMerger merger;
  WordTable words;
};

Tokenizer::Impl::Impl(TokenizerFile tables) : file(std::move(tables)), special(file.kinds.size()) {
  for (const AddedToken& token : file.added) {
    (token.normalized ? normalized_tokens : raw_tokens).add(token.spelling, token.id);
    special[static_cast<size_t>(token.id)] = token.special;
  }
  merger = BpeMerger(file.byte_tokens, std::move(file.merges));

  // A piece that spells a token is that token only if merging gets there, which a rank order does
  // not promise; so each word is tried once.
  std::vector<TokenId> reachable, merged;
  BpeScratch scratch;
  for (size_t i = 0; i < file.kinds.size(); ++i) {
    const std::string& bytes = file.token_bytes[i];
    if (file.kinds[i] != TokenKind::ordinary || bytes.empty()) continue;
    merged.clear();
    merger.merge(bytes, scratch, merged);
    const auto id = static_cast<TokenId>(i);
    if (merged.size() == 1 && merged.front() == id) reachable.push_back(id);
  }
  words = WordTable(file.token_bytes, reachable);
}

namespace {

/// One encode call: the text's cuts and the buffers that its pieces share.
class Encoder {
 public:
  Encoder(const BpeMerger& merger, const WordTable& words, std::vector<TokenId>& out)
      : merger_(merger), words_(words), out_(out) {}

  void plain(std::string_view text) {
    size_t begin = 0;
    for (const size_t end : splitter_.split(text)) {
      const std::string_view piece = text.substr(begin, end - begin);
      begin = end;
      if (const TokenId word = words_.find(piece); word >= 0) out_.push_back(word);
      else merger_.merge(piece, scratch_, out_);
    }
  }

  /// Emits the tokens of `trie` found in `text`; `between` handles the text around them.
  template <class Between>
  void cut(const AddedTokenTrie& trie, std::string_view text, Between between) {
    size_t begin = 0;
    while (const auto match = trie.find(text, begin)) {
      if (match->begin > begin) between(text.substr(begin, match->begin - begin));
      out_.push_back(match->id);
      begin = match->end;
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  const BpeMerger& merger_;
  const WordTable& words_;
  std::vector<TokenId>& out_;
  Pretokenizer splitter_;
  BpeScratch scratch_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& path) {
  CEDAR_TRY(const std::string text, read_text_file(path));
  auto tokenizer = parse(text);
  if (!tokenizer)
    return make_error(tokenizer.error().code, path + ": " + tokenizer.error().context);
  return tokenizer;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::parse(std::string_view json_text) {
  CEDAR_TRY(TokenizerFile file, read_tokenizer_file(json_text));
  auto impl = std::make_unique<const Impl>(std::move(file));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool added_tokens) const {
  std::string sanitized;
  if (!is_utf8(text)) {
    sanitized = sanitize_utf8(text);
    text = sanitized;
  }
  std::vector<TokenId> out;
  out.reserve(text.size() / 4 + 8);
  Encoder encoder(impl_->merger, impl_->words, out);
  const auto plain = [&encoder](std::string_view part) { encoder.plain(part); };
  if (!added_tokens) {
    plain(text);
    return out;
  }
  encoder.cut(impl_->raw_tokens, text,
              [&](std::string_view part) { encoder.cut(impl_->normalized_tokens, part, plain); });
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  return is_utf8(bytes) ? bytes : sanitize_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return contains(id) ? impl_->bytes(id) : std::string_view();
}

std::string_view Tokenizer::vocabulary_string(TokenId id) const {
  return contains(id) ? impl_->file.vocabulary[static_cast<size_t>(id)] : std::string_view();
}

bool Tokenizer::is_added(TokenId id) const { return impl_->kind(id) == TokenKind::added; }

bool Tokenizer::is_special(TokenId id) const {
  return is_added(id) && impl_->special[static_cast<size_t>(id)];
}

bool Tokenizer::contains(TokenId id) const { return impl_->kind(id) != TokenKind::undefined; }

TokenId Tokenizer::added_token_id(std::string_view spelling) const {
  for (const AddedTokenTrie* trie : {&impl_->raw_tokens, &impl_->normalized_tokens}) {
    const auto match = trie->find(spelling, 0);
    if (match && match->begin == 0 && match->end == spelling.size()) return match->id;
  }
  return -1;
}

int64_t Tokenizer::size() const { return static_cast<int64_t>(impl_->file.kinds.size()); }

std::string TokenTextStream::push(TokenId id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  return text_.push(tokenizer_->token_bytes(id));
}

std::string TokenTextStream::flush() { return text_.flush(); }

}  // namespace cedar::model
