#include "model/tokenizer.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/golden_text.h"

namespace cedar::model {
namespace {

using Ids = std::vector<TokenId>;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

/// Joined pieces and flush of the incremental decoder.
std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids,
                   bool skip_special) {
  TokenTextStream text(tokenizer, skip_special);
  std::string joined;
  for (const TokenId id : ids) joined += text.push(id);
  return joined + text.flush();
}

TEST(Tokenizer, EqualsTheReferenceOnEveryGoldenLine) {
  const auto tokenizer = load_tokenizer(release_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->size(), 129280);
  int encoded = 0, decoded = 0;
  for (const auto& line : read_json_lines(golden_path("tokenizer/cases.jsonl"))) {
    SCOPED_TRACE(line.at("id").get<std::string>());
    const auto ids = line.at("ids").get<Ids>();
    if (line.at("kind") == "encode") {
      ++encoded;
      EXPECT_EQ(tokenizer->encode(line.at("text").get<std::string>()), ids);
      if (line.contains("input_bytes_hex")) {
        EXPECT_EQ(tokenizer->encode(from_hex(line.at("input_bytes_hex"))), ids);
      }
    } else {
      ++decoded;
      TokenTextStream text(tokenizer);
      std::vector<std::string> pieces;
      for (const TokenId id : ids) pieces.push_back(text.push(id));
      EXPECT_EQ(pieces, line.at("stream_pieces").get<std::vector<std::string>>());
      EXPECT_EQ(text.flush(), line.at("stream_flush").get<std::string>());
    }
    for (const bool skip : {false, true}) {
      const auto expected = line.at(skip ? "decoded_skip_special" : "decoded").get<std::string>();
      EXPECT_EQ(tokenizer->decode(ids, skip), expected);
      EXPECT_EQ(stream(tokenizer, ids, skip), expected);
    }
  }
  EXPECT_EQ(encoded, 457);
  EXPECT_EQ(decoded, 83);
}

TEST(Tokenizer, ReadsTheMiniAndDemoVocabularies) {
  const auto mini = load_tokenizer(mini_tokenizer_path());
  ASSERT_TRUE(mini);
  const auto manifest = nlohmann::json::parse(read_file(golden_path("manifest.json")));
  for (const auto& line : manifest.at("tokenizer")) {
    EXPECT_EQ(mini->encode(line.at("text").get<std::string>()), line.at("ids").get<Ids>());
    EXPECT_EQ(mini->decode(line.at("ids").get<Ids>()), line.at("decoded").get<std::string>());
  }
  const auto demo = load_tokenizer(demo_tokenizer_path());
  ASSERT_TRUE(demo);
  int prompts = 0;
  for (const auto& line : nlohmann::json::parse(read_file(golden_path("demo/prompts.json")))) {
    EXPECT_EQ(demo->encode(line.at("prompt").get<std::string>()), line.at("ids").get<Ids>());
    ++prompts;
  }
  EXPECT_EQ(prompts, 20);
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = load_tokenizer(mini_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->added_token_id("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(tokenizer->added_token_id("<｜begin▁of▁sentence"), -1);
  EXPECT_EQ(tokenizer->added_token_id("x</think>"), -1);
  const TokenId think = tokenizer->added_token_id("</think>");
  EXPECT_EQ(think, 1226);
  EXPECT_EQ(tokenizer->token_bytes(think), "</think>");
  EXPECT_TRUE(tokenizer->is_added(think));
  EXPECT_FALSE(tokenizer->is_special(think));
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_EQ(tokenizer->size(), 1237);
  for (const TokenId bad : {-1, 1237, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->contains(bad));
    EXPECT_EQ(tokenizer->token_bytes(bad), "");
    EXPECT_EQ(tokenizer->decode(Ids{42, bad, 42}), tokenizer->decode(Ids{42, 42}));
  }
  const Ids space = tokenizer->encode(" ");
  ASSERT_EQ(space.size(), 1u);
  EXPECT_EQ(tokenizer->token_bytes(space[0]), " ");
  EXPECT_EQ(tokenizer->vocabulary_string(space[0]), "Ġ");
}

// Spec 2.11: a user must be able to write about control tokens without producing them.
TEST(Tokenizer, AddedTokensInTextAreTextWhenMatchingIsOff) {
  const auto tokenizer = load_tokenizer(demo_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  const std::string text = "a<｜User｜>b</think><｜end▁of▁sentence｜>";
  for (const TokenId id : tokenizer->encode(text, /*added_tokens=*/false))
    EXPECT_FALSE(tokenizer->is_added(id));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false)), text);
  EXPECT_THAT(tokenizer->encode(text), testing::Contains(1));
}

// B47: byte tokens of a four-byte character one at a time, and a sequence cut off at the end.
TEST(TokenTextStream, HoldsIncompleteCharacters) {
  const auto tokenizer = load_tokenizer(mini_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  Ids byte_tokens;
  for (const char b : std::string("😀")) {
    for (TokenId id = 0; id < tokenizer->size(); ++id) {
      if (!tokenizer->is_added(id) && tokenizer->token_bytes(id) == std::string(1, b))
        byte_tokens.push_back(id);
    }
  }
  ASSERT_EQ(byte_tokens.size(), 4u);
  TokenTextStream text(tokenizer);
  EXPECT_EQ(text.push(byte_tokens[0]), "");
  EXPECT_EQ(text.push(byte_tokens[1]), "");
  EXPECT_EQ(text.push(byte_tokens[2]), "");
  EXPECT_EQ(text.push(byte_tokens[3]), "😀");
  EXPECT_EQ(text.push(byte_tokens[0]), "");
  EXPECT_EQ(text.push(byte_tokens[1]), "");
  EXPECT_EQ(text.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(text.flush(), "");
}

TEST(Tokenizer, RandomTextSurvivesAndRandomBytesAreSanitised) {
  const auto tokenizer = load_tokenizer(demo_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  std::mt19937 random(5);
  const std::vector<std::string> words = {
      "<think>", "</think>", "<｜User｜>", "ticket", " ",
      "\n\n",    "12345",    "中文",       "é",      "😀",
      "\xFF",    "\xE4\xBD", "<",          "｜",     std::string(1, '\0'),
      "'s"};
  for (int round = 0; round < 4000; ++round) {
    std::string bytes;
    for (size_t n = random() % 10; n > 0; --n) {
      if (random() % 3 == 0) bytes += static_cast<char>(random() % 256);
      else bytes += words[random() % words.size()];
    }
    for (const bool added : {true, false}) {
      const Ids ids = tokenizer->encode(bytes, added);
      ASSERT_EQ(tokenizer->decode(ids), sanitize_utf8(bytes));
    }
  }
}

TEST(Tokenizer, RandomIdsStreamToTheirDecode) {
  const auto tokenizer = load_tokenizer(demo_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  std::mt19937 random(9);
  for (int round = 0; round < 4000; ++round) {
    Ids ids(random() % 12);
    // Mostly small ids: the single bytes are among them.
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % (random() % 4 == 0 ? 4096 : 260));
    for (const bool skip : {true, false})
      ASSERT_EQ(stream(tokenizer, ids, skip), tokenizer->decode(ids, skip));
  }
}

TEST(Tokenizer, LongPiecesTakeReasonableTime) {
  const auto tokenizer = load_tokenizer(demo_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  // One piece each: quadratic merging would take minutes.
  for (const std::string& text :
       {std::string(300000, ' '), std::string(300000, 'a'), std::string(300000, '=')}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(Tokenizer, MissingFileIsNamed) {
  const auto missing = Tokenizer::load("/nonexistent/tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::not_found);
  EXPECT_THAT(missing.error().context, testing::HasSubstr("/nonexistent/tokenizer.json"));
}

}  // namespace
}  // namespace cedar::model
