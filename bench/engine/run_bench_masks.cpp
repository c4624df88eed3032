// Times of constrained decoding on a vocabulary: compiling rules, masks of states met for the first time and met
// again, taking a token, applying a mask. Each document is checked to be accepted while it is timed.
//
//   bench_masks TOKENIZER.json

#include <ctime>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/structured/constraints.h"

namespace cedar::engine::structured {
namespace {

/// CPU time of this thread in microseconds: other programs on the machine do not count.
double now_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Case {
  const char* name;
  const char* schema;
  const char* document;  // or its beginning
};

constexpr Case kCases[] = {
    {"string", R"({"type":"string"})", R"("Hello world, how are you?)"},
    {"maxLength 1000", R"({"type":"string","maxLength":1000})", R"("Hello world, how are you?)"},
    {"maxLength 20", R"({"type":"string","maxLength":20})", R"("Hello world)"},
    {"pattern", R"x({"type":"string","pattern":"^[a-z]+(-[0-9]{1,4})?$"})x", R"("hello-12)"},
    {"date-time", R"({"type":"string","format":"date-time"})", R"("2024-01-31T10:00:00Z")"},
    {"any value", "{}", R"({"a": [1, {"b": "xy", "c": [true, null, -1.5e3]}]})"},
    {"record",
     R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,
     "maximum":150},"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"enum":
     ["a","b","c"]}},"home":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":
     "string","pattern":"^[0-9]{5}$"}},"required":["street","zip"],"additionalProperties":false}},
     "required":["name","age","email","tags","home"],"additionalProperties":false})",
     R"({"name": "Jo Smith", "age": 12, "email": "a.b@ex.org", "tags": ["a", "b", "c"], )"
     R"("home": {"street": "Main St 5", "zip": "12345"}})"},
    {"hostile", R"({"type":"string","pattern":"a.{24}$"})", R"("hello a bca daa)"},
};

int fail(const std::string& message) {
  std::fprintf(stderr, "bench_masks: %s\n", message.c_str());
  return 1;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run_case(Constraints& constraints, const model::Tokenizer& tokenizer, const Case& c) {
  OutputRules rules;
  rules.answer = AnswerKind::json_schema;
  rules.schema = c.schema;
  double begin = now_us();
  auto state = constraints.start(to_text(rules));
  const double compile = now_us() - begin;
  if (!state) return fail(c.name + (": " + state.error().message()));
  std::vector<double> cold, warm, accept;
  for (const TokenId id : tokenizer.encode(c.document, false)) {
    const int64_t known = constraints.mask_counts().masks;
    begin = now_us();
    auto mask = state->mask();
    if (!mask) return fail(c.name + (": " + mask.error().message()));
    if (constraints.mask_counts().masks > known) cold.push_back(now_us() - begin);
    begin = now_us();
    mask = state->mask();
    warm.push_back(now_us() - begin);
    begin = now_us();
    if (!state->accept(id)) return fail(std::string(c.name) + ": token refused");
    accept.push_back(now_us() - begin);
  }
  std::printf("| %-14s | %5.0f | %5.0f | %6.0f | %4.1f | %4.1f |\n", c.name, compile, median(cold),
              *std::max_element(cold.begin(), cold.end()), median(warm), median(accept));
  return 0;
}

void time_apply(Constraints& constraints, int64_t vocab_size) {
  OutputRules rules;
  rules.answer = AnswerKind::json_object;
  auto state = constraints.start(to_text(rules));
  const auto mask = state->mask();
  std::vector<float> logits(static_cast<size_t>(vocab_size), 1.0F);
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) {
    const double begin = now_us();
    (*mask)->apply(logits);
    times.push_back(now_us() - begin);
  }
  std::printf("\napplying a mask of %lld tokens to %lld logits: %.0f us\n",
              static_cast<long long>((*mask)->count()), static_cast<long long>(vocab_size),
              median(times));
}

int run(const std::string& path) {
  const auto tokenizer = model::Tokenizer::load(path);
  if (!tokenizer) return fail(tokenizer.error().message());
  const int64_t vocab_size = (*tokenizer)->size();
  auto constraints = Constraints::create(*tokenizer, vocab_size, 1);
  const double begin = now_us();
  // The first rules also sort the vocabulary.
  if (auto first = constraints->start(to_text(OutputRules())); !first) return 1;
  std::printf("vocabulary of %lld: %.0f ms, once\n\n", static_cast<long long>(vocab_size),
              (now_us() - begin) / 1000);
  std::printf(
      "| schema         | compile us | cold mask us, median | longest | known mask us | token us "
      "|\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const Case& c : kCases) {
    if (run_case(*constraints, **tokenizer, c) != 0) return 1;
  }
  time_apply(*constraints, vocab_size);
  return 0;
}

}  // namespace
}  // namespace cedar::engine::structured

int main(int argc, char** argv) {
  if (argc != 2) return cedar::engine::structured::fail("one argument is needed: TOKENIZER.json");
  return cedar::engine::structured::run(argv[1]);
}
