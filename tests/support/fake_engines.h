#pragma once
// Engines without a model for tests of the actors: they keep slots and pages like the real ones, read
// `chunk_tokens` a step, write a scripted answer, and can be slow, fail or throw on command.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/stage_engines.h"
#include "core/units.h"

namespace cedar::test {

/// Shared by the engines of one test and by the test itself.
struct EngineScript {
  int64_t block_tokens = 4;
  int64_t blocks = 64;
  int64_t sequences = 8;
  int64_t chunk_tokens = 8;
  int64_t block_bytes = 64;
  int64_t state_bytes = 0;  // of the hand-off's windows
  std::function<std::vector<TokenId>(const std::vector<TokenId>&)> answer =
      [](const std::vector<TokenId>& prompt) { return prompt; };

  std::atomic<int64_t> encoder_step_us{0};
  std::atomic<int64_t> decoder_step_us{0};
  std::atomic<int64_t> import_us{0};
  std::atomic<int64_t> encoder_chunks{1 << 30};   // left to read; then it waits for more
  std::atomic<int64_t> answer_stops_at{1 << 30};  // tokens; there an answer waits until this grows
  std::atomic<bool> encoder_throws{false};
  std::atomic<bool> decoder_throws{false};
  std::atomic<bool> encoder_fails{false};
  std::atomic<bool> decoder_fails{false};
  std::atomic<bool> cannot_start{false};
  std::atomic<int64_t> encoder_steps{0};
  std::atomic<int64_t> decoder_steps{0};
  std::atomic<int64_t> imports{0};
  std::atomic<int64_t> bad_blocks{0};  // imported bytes that were not what the encoder wrote
};

inline void pause_us(int64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

inline Error never_fits(int64_t need, int64_t have) {
  return make_error(
      Errc::context_too_long,
      std::to_string(need) + " KV blocks needed, the pool has " + std::to_string(have));
}
inline Error no_room() { return make_error(Errc::overloaded, "no room now"); }

class FakeEncoder final : public actors::EncoderEngine {
 public:
  /// All its pages come from `memory`.
  FakeEncoder(std::shared_ptr<EngineScript> script, HostMemorySource& memory)
      : script_(std::move(script)),
        pages_(std::move(*memory.allocate(script_->blocks * script_->block_bytes))) {
    for (int64_t page = script_->blocks; page > 0; --page) free_.push_back(page - 1);
  }

  Status submit(engine::PrefillRequest request) override {
    const int64_t need = blocks_of(request);
    if (need > script_->blocks) return never_fits(need, script_->blocks);
    if (static_cast<int64_t>(works_.size()) >= script_->sequences ||
        need > static_cast<int64_t>(free_.size())) {
      return no_room();
    }
    Work& work = works_[request.id];
    for (int64_t i = 0; i < need; ++i) {
      work.pages.push_back(free_.back());
      free_.pop_back();
      fill(work.pages.back(), block_mark(request.tokens, i));
    }
    work.request = std::move(request);
    return {};
  }
  bool idle() const override {
    for (const auto& [id, work] : works_) {
      if (work.computed < length(work)) return false;
    }
    return true;
  }
  Result<std::vector<engine::PrefillEvent>> step() override {
    ++script_->encoder_steps;
    pause_us(script_->encoder_step_us);
    if (script_->encoder_throws.exchange(false)) throw std::runtime_error("scripted death");
    if (script_->encoder_fails) return make_error(Errc::internal, "scripted failure");
    std::vector<engine::PrefillEvent> events;
    if (script_->encoder_chunks <= 0) {
      pause_us(1000);
      return events;
    }
    --script_->encoder_chunks;
    for (auto& [id, work] : works_) {
      if (work.computed == length(work)) continue;
      const int64_t rows = std::min(script_->chunk_tokens, length(work) - work.computed);
      work.computed += rows;
      const bool finished = work.computed == length(work);
      const int64_t ready = finished ? static_cast<int64_t>(work.pages.size())
                                     : work.computed / script_->block_tokens;
      events.push_back({id, rows, work.computed, ready, finished});
      break;
    }
    return events;
  }
  std::span<const std::byte> block(RequestId id, int64_t index) const override {
    return {page(works_.at(id).pages.at(static_cast<size_t>(index))),
            static_cast<size_t>(script_->block_bytes)};
  }
  Result<engine::Handoff> take_handoff(RequestId id) override {
    engine::Handoff handoff;
    handoff.length = length(works_.at(id));
    if (script_->state_bytes > 0) {
      CEDAR_TRY(handoff.windows, Buffer::allocate(Device{}, script_->state_bytes));
      std::memset(handoff.windows.data(),
                  static_cast<int>(block_mark(works_.at(id).request.tokens, -1)),
                  static_cast<size_t>(script_->state_bytes));
    }
    return handoff;
  }
  int64_t max_handoff_bytes() const override {
    return engine::serialised_bytes({}) + script_->state_bytes;
  }
  void release(RequestId id) override {
    const auto entry = works_.find(id);
    if (entry == works_.end()) return;
    for (const int64_t page : entry->second.pages) {
      fill(page, std::byte{0xEE});  // a reader that comes late sees that it is late
      free_.push_back(page);
    }
    works_.erase(entry);
  }
  engine::PrefillLoad load() const override {
    engine::PrefillLoad load;
    for (const auto& [id, work] : works_) load.queued_tokens += length(work) - work.computed;
    load.requests = static_cast<int32_t>(works_.size());
    load.free_blocks = static_cast<int64_t>(free_.size());
    return load;
  }

  /// What every byte of a block is: another one for other prompts and for other blocks.
  static std::byte block_mark(const std::vector<TokenId>& prompt, int64_t index) {
    uint32_t sum = static_cast<uint32_t>(prompt.size());
    for (const TokenId token : prompt) sum = sum * 31 + static_cast<uint32_t>(token);
    return static_cast<std::byte>((sum + static_cast<uint32_t>(index) * 7) % 0x7F);
  }

 private:
  struct Work {
    engine::PrefillRequest request;
    std::vector<int64_t> pages;
    int64_t computed = 0;
  };
  static int64_t length(const Work& work) {
    return static_cast<int64_t>(work.request.tokens.size());
  }
  int64_t blocks_of(const engine::PrefillRequest& request) const {
    return ceil_div(static_cast<int64_t>(request.tokens.size()), script_->block_tokens);
  }

  std::byte* page(int64_t index) const {
    return const_cast<std::byte*>(pages_.data()) + index * script_->block_bytes;
  }
  void fill(int64_t index, std::byte value) {
    std::memset(page(index), static_cast<int>(value), static_cast<size_t>(script_->block_bytes));
  }

  std::shared_ptr<EngineScript> script_;
  Buffer pages_;
  std::vector<int64_t> free_;
  std::map<RequestId, Work> works_;
};

class FakeDecoder final : public actors::DecoderEngine {
 public:
  explicit FakeDecoder(std::shared_ptr<EngineScript> script) : script_(std::move(script)) {}

  Status reserve(engine::DecodeRequest request) override {
    const int64_t need =
        ceil_div(static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens,
                 script_->block_tokens);
    if (need > script_->blocks) return never_fits(need, script_->blocks);
    if (static_cast<int64_t>(works_.size()) >= script_->sequences ||
        used_ + need > script_->blocks) {
      return no_room();
    }
    used_ += need;
    Work& work = works_[request.id];
    work.blocks = need;
    work.answer = script_->answer(request.prompt);
    work.read = engine::tokens_to_read(request);
    work.written = static_cast<int64_t>(request.emitted.size());
    work.request = std::move(request);
    return {};
  }
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) override {
    pause_us(script_->import_us);
    Work& work = works_.at(id);
    ++script_->imports;
    check_mark(work, index, bytes);
    if (!work.imported.insert(index).second) {
      return make_error(Errc::internal, "block " + std::to_string(index) + " came twice");
    }
    return {};
  }
  Status start(RequestId id, engine::Handoff handoff) override {
    Work& work = works_.at(id);
    const int64_t blocks = ceil_div(handoff.length, script_->block_tokens);
    if (static_cast<int64_t>(work.imported.size()) != blocks ||
        handoff.length != static_cast<int64_t>(work.read.size())) {
      return make_error(Errc::internal, "started with " + std::to_string(work.imported.size()) +
                                            " of " + std::to_string(blocks) + " blocks");
    }
    check_mark(work, -1, {handoff.windows.data(), static_cast<size_t>(handoff.windows.bytes())});
    work.started = true;
    return {};
  }
  void cancel(RequestId id) override {
    const auto entry = works_.find(id);
    if (entry == works_.end()) return;
    used_ -= entry->second.blocks;
    works_.erase(entry);
  }
  int64_t block_bytes() const override { return script_->block_bytes; }
  int64_t max_handoff_bytes() const override {
    return engine::serialised_bytes({}) + script_->state_bytes;
  }
  bool idle() const override {
    for (const auto& [id, work] : works_) {
      if (work.started) return false;
    }
    return true;
  }
  Result<std::vector<engine::TokenEvent>> step() override {
    ++script_->decoder_steps;
    pause_us(script_->decoder_step_us);
    if (script_->decoder_throws.exchange(false)) throw std::runtime_error("scripted death");
    if (script_->decoder_fails) return make_error(Errc::internal, "scripted failure");
    std::vector<engine::TokenEvent> events;
    std::vector<RequestId> finished;
    for (auto& [id, work] : works_) {
      if (!work.started) continue;
      if (work.written >= script_->answer_stops_at) {
        pause_us(1000);
        continue;
      }
      engine::TokenEvent event;
      event.id = id;
      event.index = work.written++;
      const auto index = static_cast<size_t>(event.index);
      event.token.token = index < work.answer.size() ? work.answer[index] : 1;
      if (index >= work.answer.size()) event.finish = engine::FinishReason::stop;
      else if (work.written == work.request.max_new_tokens)
        event.finish = engine::FinishReason::length;
      if (event.finish != engine::FinishReason::none) finished.push_back(id);
      events.push_back(event);
    }
    for (RequestId id : finished) cancel(id);
    return events;
  }
  engine::DecodeLoad load() const override {
    engine::DecodeLoad load;
    load.sequences = static_cast<int32_t>(works_.size());
    load.free_slots = static_cast<int32_t>(script_->sequences) - load.sequences;
    load.free_blocks = script_->blocks - used_;
    load.total_blocks = script_->blocks;
    return load;
  }

 private:
  struct Work {
    engine::DecodeRequest request;
    std::vector<TokenId> answer, read;
    int64_t blocks = 0;
    std::set<int64_t> imported;
    int64_t written = 0;
    bool started = false;
  };
  void check_mark(const Work& work, int64_t index, std::span<const std::byte> bytes) {
    const std::byte expected = FakeEncoder::block_mark(work.read, index);
    if (std::any_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b != expected; })) {
      ++script_->bad_blocks;
    }
  }

  std::shared_ptr<EngineScript> script_;
  std::map<RequestId, Work> works_;
  int64_t used_ = 0;
};

inline actors::EncoderEngineFactory encoder_factory(std::shared_ptr<EngineScript> script,
                                                    std::shared_ptr<HostMemorySource> memory) {
  return [script, memory]() -> Result<std::unique_ptr<actors::EncoderEngine>> {
    if (script->cannot_start) return make_error(Errc::out_of_memory, "scripted start failure");
    return std::unique_ptr<actors::EncoderEngine>(std::make_unique<FakeEncoder>(script, *memory));
  };
}

inline actors::DecoderEngineFactory decoder_factory(std::shared_ptr<EngineScript> script) {
  return [script]() -> Result<std::unique_ptr<actors::DecoderEngine>> {
    if (script->cannot_start) return make_error(Errc::out_of_memory, "scripted start failure");
    return std::unique_ptr<actors::DecoderEngine>(std::make_unique<FakeDecoder>(script));
  };
}

}  // namespace cedar::test
