// What the subcommands share: options, files, server events, addresses, terminal text.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/options.h"
#include "apps/output_file.h"
#include "apps/server_event.h"
#include "apps/terminal_text.h"
#include "apps/text_input.h"
#include "apps/ws_url.h"
#include "core/text_file.h"
#include "tests/support/temp_directory.h"

namespace cedar::apps {
namespace {

using testing::HasSubstr;

std::string complaint(const CLI::Validator& check, std::string text) { return check(text); }

TEST(Options, IntegersAreCheckedWhole) {
  const CLI::Validator check = integer_in(1, 100);
  EXPECT_EQ(complaint(check, "100"), "");
  for (const char* bad :
       {"0", "101", "-5", "1.5", "1e1", "nan", "", " 1", "99999999999999999999"}) {
    EXPECT_EQ(complaint(check, bad), std::string("must be an integer in [1, 100], got ") + bad);
  }
  EXPECT_EQ(complaint(any_integer(), "-9223372036854775808"), "");
  EXPECT_THAT(complaint(any_integer(), "9223372036854775808"), HasSubstr("must be an integer"));
  std::string zeros = "010";
  EXPECT_EQ(check(zeros), "");
  EXPECT_EQ(zeros, "10");
}

TEST(Options, NumbersAreFinite) {
  const CLI::Validator check = number_in(0, 2);
  EXPECT_EQ(complaint(check, "0.7"), "");
  for (const char* bad : {"nan", "inf", "-inf", "-0.1", "2.1", "1x", "1e999"}) {
    EXPECT_EQ(complaint(check, bad), std::string("must be a number in [0, 2], got ") + bad);
  }
}

TEST(OutputFile, AppearsUnderItsNameOnceItIsWhole) {
  const test::TempDirectory folder;
  const std::string path = folder.path() + "/out";
  std::ofstream(path) << "old";
  {
    auto out = OutputFile::open(path);
    ASSERT_TRUE(out) << out.error().message();
    out->write("new");
    out->flush();
    EXPECT_EQ(*read_text_file(path), "old");
    EXPECT_EQ(*read_text_file(path + ".partial"), "new");
    EXPECT_TRUE(out->commit());
  }
  EXPECT_EQ(*read_text_file(path), "new");
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(OutputFile, LeavesNothingBehindWhenNothingWasWritten) {
  const test::TempDirectory folder;
  const std::string path = folder.path() + "/out";
  ASSERT_TRUE(OutputFile::open(path));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(OutputFile, KeepsLinksAndModes) {
  const test::TempDirectory folder;
  const std::string path = folder.path() + "/real";
  const std::string link = folder.path() + "/link";
  std::ofstream(path) << "old";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  std::filesystem::create_symlink(path, link);
  auto out = OutputFile::open(link);
  ASSERT_TRUE(out);
  out->write("new");
  EXPECT_TRUE(out->commit());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(*read_text_file(path), "new");
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
}

TEST(OutputFile, ReportsWhatCannotBeWritten) {
  auto full = OutputFile::open("/dev/full");
  ASSERT_TRUE(full);
  full->write("text");
  full->flush();
  EXPECT_FALSE(full->ok());
  const Status status = full->commit();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().context, HasSubstr("/dev/full"));
  const auto nowhere = OutputFile::open("no/such/folder/out");
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().context, HasSubstr("no/such/folder/out"));
}

TEST(OutputFile, KnowsItsInputUnderEveryName) {
  const test::TempDirectory folder;
  const std::string path = folder.path() + "/in";
  std::ofstream(path) << "text";
  std::ofstream(folder.path() + "/other") << "text";
  std::filesystem::create_hard_link(path, folder.path() + "/hard");
  std::filesystem::create_symlink(path, folder.path() + "/soft.partial");
  EXPECT_TRUE(same_file(path, path));
  EXPECT_TRUE(same_file(path, folder.path() + "/./in"));
  EXPECT_TRUE(same_file(path, folder.path() + "/hard"));
  EXPECT_TRUE(same_file(path, folder.path() + "/soft"));  // the name while it is written
  EXPECT_FALSE(same_file(path, folder.path() + "/other"));
  EXPECT_FALSE(same_file(path, folder.path() + "/new"));
  EXPECT_FALSE(same_file("/dev/null", "/dev/null"));
}

TEST(LineReader, ReadsLinesOfAnyLength) {
  const test::TempDirectory folder;
  const std::string path = folder.path() + "/lines";
  const std::string big(200000, 'x');
  std::ofstream(path) << "one\n\n" << big << "\nlast";
  auto reader = LineReader::open(path);
  ASSERT_TRUE(reader);
  for (const std::string& line : {std::string("one"), std::string(), big, std::string("last")}) {
    const auto next = reader->next();
    ASSERT_TRUE(next && *next);
    EXPECT_EQ(**next, line);
  }
  const auto end = reader->next();
  ASSERT_TRUE(end);
  EXPECT_FALSE(*end);
}

TEST(TextFile, WhatIsNoFileIsExplained) {
  const test::TempDirectory folder;
  for (const auto kind : {FileKind::regular, FileKind::any}) {
    const auto text = read_text_file(folder.path(), kind);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().context, folder.path() + ": Is a directory");
  }
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto text = read_text_file(pipe);  // does not wait for a writer
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().context, pipe + ": is not a regular file");
  EXPECT_EQ(read_text_file(folder.path() + "/gone").error().code, Errc::not_found);
}

TEST(ServerEvent, IsReadFieldByField) {
  const auto delta = read_server_event(
      R"({"type":"response.content.delta","response_id":"r1","delta":"text","seq":3})");
  ASSERT_TRUE(delta);
  EXPECT_EQ(delta->kind, ServerEventKind::content);
  EXPECT_EQ(delta->response_id, "r1");
  EXPECT_EQ(delta->text, "text");
  const auto done =
      read_server_event(R"({"type":"response.done","response_id":"r1","status":"incomplete",)"
                        R"("usage":{"prompt_tokens":5,"completion_tokens":7}})");
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, ResponseStatus::incomplete);
  EXPECT_EQ(done->prompt_tokens, 5);
  EXPECT_EQ(done->completion_tokens, 7);
  const auto failed = read_server_event(
      R"({"type":"response.done","response_id":"r","status":"failed","error":{"message":"why"}})");
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->text, "why");
  EXPECT_EQ(read_server_event(R"({"type":"news"})")->kind, ServerEventKind::other);
}

TEST(ServerEvent, WhatBreaksTheProtocolIsAnError) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not valid JSON"},
      {"[1]", "no JSON object"},
      {R"({"type":3})", "type must be a string"},
      {R"({"type":"response.created"})", "response_id must be a string"},
      {R"({"type":"response.content.delta","response_id":7,"delta":"x"})", "response_id"},
      {R"({"type":"response.content.delta","response_id":"r","delta":{}})", "delta"},
      {R"({"type":"error"})", "error must be an object"},
      {R"({"type":"error","error":"text"})", "error must be an object"},
      {R"({"type":"error","error":{"message":1}})", "message must be a string"},
      {R"({"type":"response.done","response_id":"r","status":"merry"})", "unknown status"},
      {R"({"type":"response.done","response_id":"r","status":"completed"})", "usage"},
      {R"({"type":"response.done","response_id":"r","status":"completed",)"
       R"("usage":{"prompt_tokens":-1,"completion_tokens":1}})",
       "prompt_tokens must be a count"},
      {R"({"type":"response.done","response_id":"r","status":"completed",)"
       R"("usage":{"prompt_tokens":1,"completion_tokens":1e300}})",
       "completion_tokens must be a count"},
  };
  for (const auto& [frame, words] : cases) {
    const auto event = read_server_event(frame);
    ASSERT_FALSE(event) << frame;
    EXPECT_EQ(event.error().code, Errc::unavailable);
    EXPECT_THAT(event.error().context, HasSubstr("breaks the protocol"));
    EXPECT_THAT(event.error().context, HasSubstr(words)) << frame;
    EXPECT_THAT(event.error().context, testing::Not(HasSubstr("json.exception")));
  }
}

TEST(TerminalText, ControlsBecomeSigns) {
  EXPECT_EQ(printable("a\tb\nc é 中"), "a\tb\nc é 中");
  EXPECT_EQ(printable("\x1b[31m"), "\u241B[31m");
  EXPECT_EQ(printable("\r\x07\x7f"), "\u240D\u2407\u2421");
  EXPECT_EQ(printable("\u009b2J"), "\uFFFD2J");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\u2400");
}

TEST(TerminalText, ARateNeedsTokensAndTime) {
  EXPECT_EQ(rate_text(11, 0.5), ", 20.0 tokens/s");
  EXPECT_EQ(rate_text(1, 0.5), "");
  EXPECT_EQ(rate_text(0, 0.5), "");
  EXPECT_EQ(rate_text(100, 0.0001), "");
  EXPECT_EQ(rate_text(100, 0), "");
  EXPECT_EQ(rate_text(100, -1), "");
}

TEST(WsUrl, PartsAreFound) {
  const auto plain = parse_ws_url("ws://host:81/path?key=a/b");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->host, "host");
  EXPECT_EQ(plain->port, "81");
  EXPECT_EQ(plain->path, "/path?key=a/b");
  const auto six = parse_ws_url("ws://[::1]:8080?x=1");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->host, "::1");
  EXPECT_EQ(six->authority(), "[::1]:8080");
  EXPECT_EQ(six->path, "/v1/stream?x=1");
  const auto bare = parse_ws_url("ws://[fe80::1]");
  ASSERT_TRUE(bare);
  EXPECT_EQ(bare->port, "80");
  EXPECT_EQ(bare->path, "/v1/stream");
  EXPECT_FALSE(bare->secure);
  const auto secure = parse_ws_url("wss://host/x");
  ASSERT_TRUE(secure);
  EXPECT_TRUE(secure->secure);
  EXPECT_EQ(secure->text(), "wss://host:443/x");
  EXPECT_EQ(parse_ws_url("wss://[::1]:81")->text(), "wss://[::1]:81/v1/stream");
}

TEST(WsUrl, WhatIsNoAddressIsExplained) {
  for (const char* bad :
       {"http://x", "host", "ws://", "ws:///v1", "ws://:80", "ws://h:", "ws://h:0", "ws://h:65536",
        "ws://h:8x", "ws://::1:80/", "ws://[::1", "ws://[::1]80", "ws://[]:80", "ws://u@h",
        "ws://h/#top", "ws://h/a b", "ws://h/\r\nX: y", "wss://", "wsss://h"}) {
    const auto url = parse_ws_url(bad);
    ASSERT_FALSE(url) << bad;
    EXPECT_THAT(url.error().context, HasSubstr("url: ")) << bad;
  }
}

}  // namespace
}  // namespace cedar::apps
