#pragma once
// The text key of a token in Engram's compression map (spec/model.md 9.1).

#include <string>
#include <string_view>

namespace cedar::model {

class Tokenizer;

/// NFKC, NFD, combining marks removed, lower case, runs of space, tab, CR and LF made one space,
/// blanks stripped; a text that is nothing but one space stays one space. May be empty.
/// REQUIRES: `text` is well-formed UTF-8.
std::string fold_token_text(std::string_view text);

}  // namespace cedar::model
