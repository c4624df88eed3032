#include "model/safetensors.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_directory.h"

namespace cedar::model {
namespace {

using test::safetensors_file;
using test::safetensors_with_header;
using test::zeros;
using testing::AllOf;
using testing::HasSubstr;

const std::string kMini = std::string(CEDAR_SOURCE_DIR) + "/tests/golden/mini";

Result<std::shared_ptr<const SafetensorsFile>> parse(const std::string& file) {
  return SafetensorsFile::parse(std::as_bytes(std::span(file.data(), file.size())), "memory");
}

void expect_refused(const std::string& file, const std::string& problem,
                    const std::string& tensor = "") {
  const auto parsed = parse(file);
  ASSERT_FALSE(parsed) << problem;
  EXPECT_EQ(parsed.error().code, Errc::invalid_checkpoint);
  EXPECT_THAT(parsed.error().context,
              AllOf(HasSubstr("memory: "), HasSubstr(problem), HasSubstr(tensor)));
}

/// One tensor's header text around the parts under test.
std::string header(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, ReadsWhatWasWritten) {
  const std::string file =
      safetensors_file({{"a", "F32", {2}, std::string("\0\0\x80\x3f\0\0\0\x40", 8)},
                        zeros("empty", "BF16", {0, 7}),
                        {"scalar", "U8", {}, "x"},
                        {"codes", "I8", {1, 3}, "abc"}});
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed) << parsed.error().message();
  const SafetensorsFile& tensors = **parsed;
  EXPECT_EQ(tensors.tensors().size(), 4u);
  ASSERT_NE(tensors.find("a"), nullptr);
  EXPECT_THAT(tensors.find("a")->as<float>(), testing::ElementsAre(1.0f, 2.0f));
  EXPECT_EQ(tensors.find("empty")->bytes(), 0);
  EXPECT_EQ(tensors.find("scalar")->elements(), 1);
  EXPECT_THAT(tensors.find("codes")->as<char>(), testing::ElementsAre('a', 'b', 'c'));
  EXPECT_EQ(tensors.find("codes")->shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(tensors.find("absent"), nullptr);
}

TEST(Safetensors, ViewsAreAlignedEvenWhenTheFileIsNot) {
  const std::string file =
      safetensors_file({{"odd", "U8", {1}, "x"},
                        {"floats", "F32", {2}, std::string("\0\0\x80\x3f\0\0\0\x40", 8)},
                        {"wide", "I64", {1}, std::string("\1\0\0\0\0\0\0\0", 8)}});
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed) << parsed.error().message();
  for (const auto& [name, view] : (*parsed)->tensors()) {
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(dtype_bytes(view.dtype)),
        0u);
  }
  EXPECT_THAT((*parsed)->find("floats")->as<float>(), testing::ElementsAre(1.0f, 2.0f));
  EXPECT_THAT((*parsed)->find("wide")->as<int64_t>(), testing::ElementsAre(1));
}

TEST(Safetensors, AnEmptyHeaderIsAnEmptyFile) {
  EXPECT_TRUE(parse(safetensors_with_header("{}", "")));
  EXPECT_TRUE(parse(safetensors_with_header("{}     ", "")));
  EXPECT_TRUE(parse(safetensors_with_header(R"({"__metadata__":{"format":"pt"}})", "")));
}

TEST(Safetensors, RefusesBadLengths) {
  expect_refused("", "0 bytes");
  expect_refused("1234567", "7 bytes");
  expect_refused(std::string(8, '\xff'), "header length 18446744073709551615");
  expect_refused(std::string("\x10\0\0\0\0\0\0\0{}", 10), "header length 16");
  std::string huge = safetensors_with_header("{}", "");
  huge[3] = '\x7f';
  expect_refused(huge, "header length");
}

TEST(Safetensors, RefusesHeadersThatAreNotOneObject) {
  expect_refused(safetensors_with_header("", ""), "not valid JSON");
  expect_refused(safetensors_with_header("not json", ""), "not valid JSON");
  expect_refused(safetensors_with_header("[]", ""), "expected an object");
  expect_refused(safetensors_with_header("{} {}", ""), "not valid JSON");
  expect_refused(safetensors_with_header(std::string("{}\0\"hidden\"", 11), ""), "NUL");
  expect_refused(safetensors_with_header(R"({"__metadata__":{"a":1}})", ""), "__metadata__");
  expect_refused(safetensors_with_header("{\"\xff\":{}}", ""), "not valid JSON");
}

TEST(Safetensors, RefusesRepeatedNames) {
  const std::string entry = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_refused(safetensors_with_header("{" + entry + "," + entry + "}", "x"), "twice", "\"t\"");
  expect_refused(safetensors_with_header(
                     R"({"t":{"dtype":"U8","shape":[2],"shape":[1],"data_offsets":[0,1]}})", "x"),
                 "twice", "shape");
}

TEST(Safetensors, RefusesBadEntries) {
  const std::string four = "abcd";
  const auto refused = [&](const std::string& text, const std::string& problem) {
    expect_refused(safetensors_with_header(text, four), problem, "tensor 't'");
  };
  refused(R"({"t":[]})", "expected an object");
  refused(R"({"t":{"shape":[4],"data_offsets":[0,4]}})", "has no dtype");
  refused(R"({"t":{"dtype":"U8","data_offsets":[0,4]}})", "has no shape");
  refused(R"({"t":{"dtype":"U8","shape":[4]}})", "has no data_offsets");
  refused(header("7", "[4]", "[0,4]"), "dtype");
  refused(header("\"F12\"", "[4]", "[0,4]"), "unknown dtype \"F12\"");
  refused(header("\"U8\"", "4", "[0,4]"), "shape");
  refused(header("\"U8\"", "[-4]", "[0,4]"), "shape");
  refused(header("\"U8\"", "[4.0]", "[0,4]"), "shape");
  refused(header("\"U8\"", "[\"4\"]", "[0,4]"), "shape");
  refused(header("\"U8\"", "[1,1,1,1,1,1,1,1,4]", "[0,4]"), "shape");
  refused(header("\"U8\"", "[18446744073709551615]", "[0,4]"), "shape");
  refused(header("\"F32\"", "[4611686018427387904]", "[0,4]"), "more than an int64");
  refused(header("\"U8\"", "[4294967296,4294967296,4294967296]", "[0,4]"), "more than an int64");
  refused(header("\"U8\"", "[3]", "[0,4]"), "needs 3 bytes");
  refused(header("\"F32\"", "[2]", "[0,4]"), "needs 8 bytes");
  refused(header("\"U8\"", "[4]", "4"), "data_offsets");
  refused(header("\"U8\"", "[4]", "[0]"), "data_offsets");
  refused(header("\"U8\"", "[4]", "[0,4,8]"), "data_offsets");
  refused(header("\"U8\"", "[4]", "[4,0]"), "data_offsets");
  refused(header("\"U8\"", "[4]", "[-4,0]"), "data_offsets");
  refused(header("\"U8\"", "[4]", "[0,\"4\"]"), "data_offsets");
  refused(header("\"U8\"", "[5]", "[0,5]"), "truncated");
  refused(header("\"U8\"", "[4]", "[18446744073709551611,18446744073709551615]"), "truncated");
  refused(header("\"U8\"", "[3]", "[1,4]"), "hole");
}

TEST(Safetensors, RefusesOverlapsHolesAndTails) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  EXPECT_TRUE(parse(safetensors_with_header(two("[2,4]", "[0,2]"), "abcd")));
  expect_refused(safetensors_with_header(two("[0,2]", "[1,3]"), "abc"), "overlaps", "tensor 'b'");
  expect_refused(safetensors_with_header(two("[0,2]", "[0,2]"), "ab"), "overlaps", "tensor");
  expect_refused(safetensors_with_header(two("[0,2]", "[3,5]"), "abcde"), "hole", "tensor 'b'");
  expect_refused(safetensors_with_header(two("[0,2]", "[2,4]"), "abcde"),
                 "1 bytes behind the last tensor");
}

TEST(Safetensors, OpenNamesTheFile) {
  const test::TempDirectory directory;
  const auto absent = SafetensorsFile::open(directory.file("absent.safetensors"));
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Errc::not_found);
  EXPECT_THAT(absent.error().context, HasSubstr("absent.safetensors"));

  const auto folder = SafetensorsFile::open(directory.path());
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, Errc::io_error);

  const auto empty = SafetensorsFile::open(directory.write("empty.safetensors", ""));
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, Errc::invalid_checkpoint);

  const std::string shard = test::read_file(kMini + "/model-00004-of-00004.safetensors");
  const auto truncated = SafetensorsFile::open(
      directory.write("cut.safetensors", std::string_view(shard).substr(0, shard.size() - 1)));
  ASSERT_FALSE(truncated);
  EXPECT_THAT(truncated.error().context,
              AllOf(HasSubstr("cut.safetensors"), HasSubstr("truncated")));
}

TEST(CheckpointFiles, OpensAllShardsOfMini) {
  const auto files = open_checkpoint_files(kMini);
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->shards.size(), 4u);
  EXPECT_EQ(files->tensors.size(), 1331u);
  EXPECT_EQ(files->names.size(), 1331u);
  EXPECT_THAT(files->tensors.at("embed.weight").file->path(), HasSubstr(".safetensors"));
}

/// Two shards and their index, which a test may change.
class ShardedDirectory {
 public:
  ShardedDirectory() {
    directory_.write("one.safetensors",
                     safetensors_file({{"a", "U8", {1}, "x"}, {"b", "U8", {1}, "y"}}));
    directory_.write("two.safetensors", safetensors_file({{"c", "U8", {1}, "z"}}));
    write_index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")");
  }
  void write_index(const std::string& entries) {
    directory_.write("model.safetensors.index.json",
                     R"({"metadata":{"total_size":3},"weight_map":{)" + entries + "}}");
  }
  Error refusal() const {
    const auto files = open_checkpoint_files(directory_.path());
    EXPECT_FALSE(files);
    return files ? Error{} : files.error();
  }
  const test::TempDirectory& directory() const { return directory_; }

 private:
  test::TempDirectory directory_;
};

TEST(CheckpointFiles, OpensOnlyWantedShards) {
  ShardedDirectory sharded;
  std::filesystem::remove(sharded.directory().file("one.safetensors"));
  const auto files = open_checkpoint_files(sharded.directory().path(),
                                           [](const std::string& name) { return name == "c"; });
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->shards.size(), 1u);
  EXPECT_EQ(files->names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(sharded.refusal().code, Errc::not_found);
  EXPECT_THAT(sharded.refusal().context, HasSubstr("one.safetensors"));
}

TEST(CheckpointFiles, IndexAndShardsMustAgree) {
  ShardedDirectory sharded;
  sharded.write_index(R"("a":"one.safetensors","b":"two.safetensors","c":"two.safetensors")");
  EXPECT_THAT(sharded.refusal().context, AllOf(HasSubstr("one.safetensors"), HasSubstr("'b'")));
  sharded.write_index(R"("a":"one.safetensors","b":"one.safetensors","d":"two.safetensors")");
  EXPECT_THAT(sharded.refusal().context, AllOf(HasSubstr("two.safetensors"), HasSubstr("'d'")));
  // A second shard that holds 'a' too.
  sharded.directory().write("two.safetensors",
                            safetensors_file({{"a", "U8", {1}, "x"}, {"c", "U8", {1}, "z"}}));
  sharded.write_index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")");
  EXPECT_THAT(sharded.refusal().context, AllOf(HasSubstr("two.safetensors"), HasSubstr("'a'")));
}

TEST(CheckpointFiles, RefusesBadIndexes) {
  ShardedDirectory sharded;
  sharded.write_index(R"("a":"../one.safetensors")");
  EXPECT_THAT(sharded.refusal().context, AllOf(HasSubstr("'a'"), HasSubstr("../one.safetensors")));
  sharded.write_index(R"("a":7)");
  EXPECT_THAT(sharded.refusal().context, HasSubstr("'a'"));
  sharded.write_index(R"("a":"one.safetensors","a":"two.safetensors")");
  EXPECT_THAT(sharded.refusal().context, HasSubstr("twice"));
  sharded.directory().write("model.safetensors.index.json", R"({"weight_map":[]})");
  EXPECT_THAT(sharded.refusal().context, HasSubstr("weight_map"));
  sharded.directory().write("model.safetensors.index.json", "");
  EXPECT_EQ(sharded.refusal().code, Errc::invalid_checkpoint);
}

TEST(CheckpointFiles, OneFileNeedsNoIndex) {
  const test::TempDirectory directory;
  const auto nothing = open_checkpoint_files(directory.path());
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, Errc::not_found);
  EXPECT_THAT(nothing.error().context, HasSubstr("no weights found"));

  directory.write("model.safetensors", safetensors_file({{"a", "U8", {1}, "x"}}));
  const auto files = open_checkpoint_files(directory.path());
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->names, (std::vector<std::string>{"a"}));
}

}  // namespace
}  // namespace cedar::model
