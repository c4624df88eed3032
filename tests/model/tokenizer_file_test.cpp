#include "model/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/golden_text.h"

namespace cedar::model {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class TokenizerFileTest : public testing::Test {
 protected:
  json file_ = json::parse(read_file(mini_tokenizer_path()));

  void expect_refused(const std::string& what) {
    const auto result = read_tokenizer_file(file_.dump());
    ASSERT_FALSE(result) << what;
    EXPECT_EQ(result.error().code, Errc::invalid_config);
    EXPECT_THAT(result.error().context, HasSubstr(what));
  }
};

TEST_F(TokenizerFileTest, AcceptsTheFileItself) { EXPECT_TRUE(read_tokenizer_file(file_.dump())); }

TEST_F(TokenizerFileTest, RefusesOtherPipelines) {
  const json original = file_;
  const auto refuse = [&](const char* pointer, const json& value, const std::string& what) {
    file_ = original;
    file_[json::json_pointer(pointer)] = value;
    expect_refused(what);
  };
  refuse("/model/type", "Unigram", "model.type");
  refuse("/model/dropout", 0.1, "model.dropout");
  refuse("/model/byte_fallback", true, "model.byte_fallback");
  refuse("/model/ignore_merges", true, "model.ignore_merges");
  refuse("/model/unk_token", "<unk>", "model.unk_token");
  refuse("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix");
  refuse("/normalizer", {{"type", "NFC"}}, "normalizer.type");
  refuse("/normalizer/normalizers", {{{"type", "NFC"}}}, "normalizer.normalizers");
  refuse("/pre_tokenizer/type", "Whitespace", "pre_tokenizer.type");
  refuse("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{N}",
         "pretokenizers[0].pattern.Regex");
  refuse("/pre_tokenizer/pretokenizers/1/behavior", "Removed", "pretokenizers[1].behavior");
  refuse("/pre_tokenizer/pretokenizers/2/invert", true, "pretokenizers[2].invert");
  refuse("/pre_tokenizer/pretokenizers/3/add_prefix_space", true,
         "pretokenizers[3].add_prefix_space");
  refuse("/pre_tokenizer/pretokenizers/3/use_regex", true, "pretokenizers[3].use_regex");
  refuse("/pre_tokenizer/pretokenizers", json::array(), "3 Split steps");
  refuse("/post_processor", {{"type", "TemplateProcessing"}}, "post_processor.type");
  refuse("/decoder/type", "WordPiece", "decoder.type");
  refuse("/truncation", {{"max_length", 3}}, "truncation");
}

TEST_F(TokenizerFileTest, RefusesBrokenVocabularies) {
  const json original = file_;
  const auto refuse = [&](const std::function<void(json&)>& change, const std::string& what) {
    file_ = original;
    change(file_);
    expect_refused(what);
  };
  refuse([](json& f) { f["model"]["vocab"].erase("Ā"); }, "single byte 0");
  refuse([](json& f) { f["model"]["vocab"]["!"] = 4; }, "already belongs to");
  refuse([](json& f) { f["model"]["vocab"]["!"] = -1; }, "an id from 0");
  refuse([](json& f) { f["model"]["vocab"]["!"] = 1 << 30; }, "an id from 0");
  refuse([](json& f) { f["model"]["vocab"]["!"] = "3"; }, "an id from 0");
  refuse([](json& f) { f["model"]["vocab"]["two words"] = 5000; }, "outside the byte alphabet");
  refuse([](json& f) { f["model"]["vocab"] = json::array(); }, "model.vocab");
  refuse([](json& f) { f["model"]["merges"][3] = "a"; }, "model.merges[3]");
  refuse([](json& f) { f["model"]["merges"][3] = "a b c"; }, "model.merges[3]");
  refuse([](json& f) { f["model"]["merges"][3] = "q q"; }, "\"qq\" is not in the vocabulary");
  refuse([](json& f) { f["model"]["merges"][3] = f["model"]["merges"][0]; },
         "repeats the pair of merge 0");
  refuse([](json& f) { f["model"].erase("merges"); }, "model.merges");
  refuse([](json& f) { f["added_tokens"][0]["lstrip"] = true; }, "added_tokens[0].lstrip");
  refuse([](json& f) { f["added_tokens"][0]["single_word"] = true; },
         "added_tokens[0].single_word");
  refuse([](json& f) { f["added_tokens"][0]["content"] = ""; }, "added_tokens[0].content");
  refuse([](json& f) { f["added_tokens"][4]["content"] = "<think>"; }, "listed twice");
  refuse([](json& f) { f["added_tokens"][4]["id"] = 1225; }, "already belongs to");
  refuse([](json& f) { f["added_tokens"][0]["id"] = 7; }, "among the added tokens");
  refuse(
      [](json& f) {
        f["added_tokens"][3] = {{"id", f["model"]["vocab"]["Ġt"]},
                                {"content", "Ġt"},
                                {"special", false},
                                {"normalized", true}};
      },
      "stands for other bytes");
  refuse([](json& f) { f["added_tokens"][0].erase("special"); }, "added_tokens[0].special");
}

TEST_F(TokenizerFileTest, RefusesWhatIsNoTokenizer) {
  for (const char* text : {"", "{", "[]", "null", "{}", "{\"model\": 3}", "\xFF"}) {
    const auto result = read_tokenizer_file(text);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, Errc::invalid_config);
    EXPECT_THAT(result.error().context, HasSubstr("tokenizer"));
  }
}

TEST_F(TokenizerFileTest, ReadsMergesAsPairsToo) {
  const auto expected = read_tokenizer_file(file_.dump());
  for (json& merge : file_["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  const auto pairs = read_tokenizer_file(file_.dump());
  ASSERT_TRUE(expected && pairs);
  ASSERT_EQ(pairs->merges.size(), expected->merges.size());
  for (size_t i = 0; i < pairs->merges.size(); ++i)
    EXPECT_EQ(pairs->merges[i].result, expected->merges[i].result);
}

std::vector<TokenId> with(std::vector<TokenId> ids, TokenId last) {
  ids.push_back(last);
  return ids;
}

// An added token that is matched before normalisation wins over an earlier one that is matched
// after it.
TEST_F(TokenizerFileTest, AddedTokensAreMatchedInTwoPasses) {
  file_["added_tokens"].push_back(
      {{"id", 1300}, {"content", "#ab"}, {"special", false}, {"normalized", true}});
  file_["added_tokens"].push_back(
      {{"id", 1301}, {"content", "bcd"}, {"special", false}, {"normalized", false}});
  file_["added_tokens"].push_back(
      {{"id", 1302}, {"content", "bcde"}, {"special", false}, {"normalized", false}});
  const auto tokenizer = Tokenizer::parse(file_.dump());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  const auto before = (*tokenizer)->encode("#a");
  EXPECT_EQ((*tokenizer)->encode("#abcd"), with(before, 1301));
  EXPECT_EQ((*tokenizer)->encode("#abcde"), with(before, 1302));  // the longest on a tie
  EXPECT_EQ((*tokenizer)->encode("#ab#ab"), (std::vector<TokenId>{1300, 1300}));
  // Ids between the vocabulary and the new tokens do not exist.
  EXPECT_FALSE((*tokenizer)->contains(1250));
  EXPECT_EQ((*tokenizer)->size(), 1303);
}

}  // namespace
}  // namespace cedar::model
