#include "actors/request_list.h"

#include <algorithm>

namespace cedar::actors {
namespace {

std::string address(const DataEndpoint& endpoint) {
  if (endpoint.port == 0) return {};
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return (brackets ? '[' + endpoint.host + ']' : endpoint.host) + ':' +
         std::to_string(endpoint.port);
}

std::chrono::milliseconds since(RequestEntry::Clock::time_point begin,
                                RequestEntry::Clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::max(now, begin) - begin);
}

}  // namespace

RequestEntry::RequestEntry(RequestId id, int64_t prompt_tokens, Clock::time_point arrival)
    : id_(id), prompt_tokens_(prompt_tokens), arrival_(arrival), phase_begin_(arrival) {}

void RequestEntry::enter(monitoring::Phase phase, Clock::time_point now) {
  phase_ = phase;
  phase_begin_ = now;
}

void RequestEntry::set_stages(const DataEndpoint& encoder, const DataEndpoint& decoder) {
  std::lock_guard lock(mutex_);
  encoder_ = address(encoder);
  decoder_ = address(decoder);
}

RequestInfo RequestEntry::info(Clock::time_point now) const {
  RequestInfo info;
  info.id = id_;
  info.phase = monitoring::kPhaseNames[static_cast<size_t>(phase_.load())];
  info.age = since(arrival_, now);
  info.in_phase = since(phase_begin_, now);
  info.prompt_tokens = prompt_tokens_;
  info.read_tokens = read_;
  info.written_tokens = written_;
  std::lock_guard lock(mutex_);
  info.encoder = encoder_;
  info.decoder = decoder_;
  return info;
}

std::shared_ptr<RequestEntry> RequestList::add(RequestId id, int64_t prompt_tokens,
                                               RequestEntry::Clock::time_point arrival) {
  auto entry = std::make_shared<RequestEntry>(id, prompt_tokens, arrival);
  std::lock_guard lock(mutex_);
  if (entries_.size() >= prune_at_) {
    std::erase_if(entries_, [](const auto& one) { return one.expired(); });
    prune_at_ = std::max<size_t>(64, 2 * entries_.size());
  }
  entries_.push_back(entry);
  return entry;
}

std::vector<RequestInfo> RequestList::list() const {
  const auto now = RequestEntry::Clock::now();
  std::vector<RequestInfo> infos;
  std::lock_guard lock(mutex_);
  for (const auto& one : entries_) {
    if (const auto entry = one.lock()) infos.push_back(entry->info(now));
  }
  return infos;
}

}  // namespace cedar::actors
