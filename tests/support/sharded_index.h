#pragma once
// Index keys spread over holders in this process, without messages and threads: what the exactness of engine/index_service.h
// is tested with.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "engine/index_key_store.h"
#include "tests/support/backends.h"

namespace cedar::test {

class ShardedIndex : public engine::IndexService {
 public:
  using Clock = std::chrono::steady_clock;
  /// Which holder takes a block; below 0: none, ever.
  using Cut = std::function<int(int32_t block)>;

  ShardedIndex(int holders, Cut cut, int threads = 1)
      : cut_(std::move(cut)), pool_(threads), arena_(Device{}) {
    for (int i = 0; i < holders; ++i) {
      auto store = engine::IndexKeyStore::create(int64_t{256} << 20);
      CEDAR_ASSERT(store.has_value(), store ? std::string() : store.error().message());
      stores_.push_back(std::move(*store));
    }
    ctx_.pool = &pool_;
    ctx_.arena = &arena_;
  }

  /// Does `holder` answer its `n`-th scan? All do by default.
  std::function<bool(int holder, int64_t n)> answers = [](int, int64_t) { return true; };

  engine::IndexSequence open(const engine::IndexBlockLayout& layout) override {
    const engine::IndexSequence id{++next_};
    sequences_[id].layout = layout;
    for (size_t h = 0; h < stores_.size(); ++h) {
      check(stores_[h].open({1, id.value}, layout, lease_end()));
    }
    sequences_[id].held.resize(stores_.size());
    return id;
  }

  std::vector<int32_t> wanted(engine::IndexSequence id, int64_t finished) override {
    Sequence& sequence = sequences_.at(id);
    std::vector<int32_t> out;
    for (; sequence.next < finished; ++sequence.next) {
      if (cut_(sequence.next) >= 0) out.push_back(sequence.next);
    }
    return out;
  }

  void append(engine::IndexSequence id, std::vector<int32_t> blocks,
              std::vector<std::byte> keys) override {
    Sequence& sequence = sequences_.at(id);
    const auto bytes = static_cast<size_t>(sequence.layout.bytes());
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto holder = static_cast<size_t>(cut_(blocks[i]));
      std::vector<int32_t>& held = sequence.held[holder];
      check(stores_[holder].append(
          {1, id.value}, static_cast<int64_t>(held.size()), {&blocks[i], 1},
          std::span<const std::byte>(keys).subspan(i * bytes, bytes), lease_end()));
      held.push_back(blocks[i]);
    }
    appended_ += static_cast<int64_t>(blocks.size());
  }

  void close(engine::IndexSequence id) override {
    for (engine::IndexKeyStore& store : stores_) store.close({1, id.value});
    sequences_.erase(id);
  }

  std::unique_ptr<engine::IndexScan> scan(const engine::IndexQuestions& questions,
                                          std::span<const engine::IndexScanRows> entries) override {
    auto scan = std::make_unique<Scan>();
    for (size_t e = 0; e < entries.size(); ++e) {
      const engine::IndexScanRows& entry = entries[e];
      const Sequence& sequence = sequences_.at(entry.sequence);
      std::vector<int32_t>& asked = scan->asked_blocks.emplace_back();
      for (size_t h = 0; h < stores_.size(); ++h) {
        const std::vector<int32_t>& held = sequence.held[h];
        if (held.empty()) continue;
        asked.insert(asked.end(), held.begin(), held.end());
        engine::IndexScan::Answer answer;
        answer.entry = e;
        answer.blocks = held;
        if (answers(static_cast<int>(h), scans_++)) {
          const engine::IndexPartRows rows{
              {1, entry.sequence.value}, static_cast<int64_t>(held.size()), entry.rows};
          auto found = stores_[h].scan(ctx_, questions.slice(entry.row_begin, entry.rows),
                                       {&rows, 1}, lease_end());
          CEDAR_ASSERT(found.has_value(), found ? std::string() : found.error().message());
          answer.findings = std::move(*found);
        }
        scan->answers.push_back(std::move(answer));
      }
      std::sort(asked.begin(), asked.end());
    }
    return scan;
  }

  const engine::IndexKeyStore& store(int holder) const {
    return stores_[static_cast<size_t>(holder)];
  }
  int64_t scans() const { return scans_; }
  int64_t appended() const { return appended_; }

 private:
  struct Sequence {
    engine::IndexBlockLayout layout;
    int32_t next = 0;
    std::vector<std::vector<int32_t>> held;  // per holder
  };
  struct Scan : engine::IndexScan {
    std::span<const int32_t> asked(size_t entry) const override { return asked_blocks[entry]; }
    std::vector<Answer> collect() override { return std::move(answers); }
    std::vector<std::vector<int32_t>> asked_blocks;
    std::vector<Answer> answers;
  };

  static void check(const Status& status) {
    CEDAR_ASSERT(status.has_value(), status ? std::string() : status.error().message());
  }
  static Clock::time_point lease_end() { return Clock::now() + std::chrono::hours(1); }

  Cut cut_;
  ThreadPool pool_;
  Arena arena_;
  kernels::KernelContext ctx_;
  std::vector<engine::IndexKeyStore> stores_;
  std::map<engine::IndexSequence, Sequence> sequences_;
  uint64_t next_ = 0;
  int64_t scans_ = 0, appended_ = 0;
};

}  // namespace cedar::test
