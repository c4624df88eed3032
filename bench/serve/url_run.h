#pragma once
// Load on a running server, as its users make it: answers of a given length to prompts of a given length, by arrival
// rate or by number at a time.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/ws_url.h"
#include "core/result.h"

namespace cedar::bench {

struct UrlOptions {
  apps::WsUrl url;
  std::string key;    // of the API; empty: none
  std::string model;  // empty: the server's
  int64_t requests = 100;
  double request_rate = 0;       // per second, Poisson; 0: as soon as concurrency allows
  int64_t concurrency = 8;       // requests at a time, at most
  int64_t prompt_tokens = 3080;  // about
  int64_t answer_tokens = 20;
  uint64_t seed = 1;
};

/// Times in seconds, ascending.
struct UrlResult {
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t prompt_tokens = 0;  // of completed requests
  int64_t answer_tokens = 0;
  double seconds = 0;  // from the first request to the end of the last
  std::vector<double> first_token;
  std::vector<double> inter_token;  // between two texts of an answer
  std::vector<double> per_token;    // of an answer, behind its first token
  std::vector<double> whole;
  std::vector<std::string> problems;  // the first few, in words
};

/// Sends two requests of its own first, to learn how many tokens a word has there. Errors: unavailable.
Result<UrlResult> run_url(const UrlOptions& options);

nlohmann::ordered_json to_json(const UrlOptions& options, const UrlResult& result);
void print(const UrlResult& result);

}  // namespace cedar::bench
