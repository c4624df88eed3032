#include "actors/stage_engines.h"

#include <utility>

namespace cedar::actors {
namespace {

class PrefillAdapter final : public EncoderEngine {
 public:
  explicit PrefillAdapter(std::unique_ptr<engine::PrefillEngine> engine)
      : engine_(std::move(engine)) {}
  Status submit(engine::PrefillRequest request) override {
    return engine_->submit(std::move(request));
  }
  bool idle() const override { return engine_->idle(); }
  Result<std::vector<engine::PrefillEvent>> step() override { return engine_->step(); }
  std::span<const std::byte> block(RequestId id, int64_t index) const override {
    return engine_->block(id, index);
  }
  int64_t block_bytes() const override { return engine_->model().layout.block_bytes; }
  int64_t usable_blocks(Position length, int64_t cached, Position windows_at) const override {
    return engine_->usable_blocks(length, cached, windows_at);
  }
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) override {
    return engine_->import_block(id, index, bytes);
  }
  Status import_windows(RequestId id, engine::Handoff state) override {
    return engine_->import_windows(id, std::move(state));
  }
  Status resume(RequestId id, int64_t blocks) override { return engine_->resume(id, blocks); }
  Result<engine::Handoff> take_windows(RequestId id) override { return engine_->take_windows(id); }
  Result<engine::Handoff> take_handoff(RequestId id) override { return engine_->take_handoff(id); }
  int64_t max_handoff_bytes() const override { return engine_->max_handoff_bytes(); }
  void release(RequestId id) override { engine_->release(id); }
  engine::PrefillLoad load() const override { return engine_->load(); }

 private:
  std::unique_ptr<engine::PrefillEngine> engine_;
};

class DecodeAdapter final : public DecoderEngine {
 public:
  explicit DecodeAdapter(std::unique_ptr<engine::DecodeEngine> engine)
      : engine_(std::move(engine)) {}
  Status reserve(engine::DecodeRequest request) override {
    return engine_->reserve(std::move(request));
  }
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) override {
    return engine_->import_block(id, index, bytes);
  }
  Status start(RequestId id, engine::Handoff handoff) override {
    return engine_->start(id, std::move(handoff));
  }
  void cancel(RequestId id) override { engine_->cancel(id); }
  void on_block(engine::DecodeEngine::BlockSink sink) override {
    engine_->on_block(std::move(sink));
  }
  int64_t block_bytes() const override { return engine_->block_bytes(); }
  int64_t max_handoff_bytes() const override { return engine_->max_handoff_bytes(); }
  bool idle() const override { return engine_->idle(); }
  Result<std::vector<engine::TokenEvent>> step() override { return engine_->step(); }
  engine::StepStats last_step() const override { return engine_->last_step(); }
  engine::DecodeLoad load() const override { return engine_->load(); }

 private:
  std::unique_ptr<engine::DecodeEngine> engine_;
};

}  // namespace

std::unique_ptr<EncoderEngine> as_stage_engine(std::unique_ptr<engine::PrefillEngine> engine) {
  return std::make_unique<PrefillAdapter>(std::move(engine));
}

std::unique_ptr<DecoderEngine> as_stage_engine(std::unique_ptr<engine::DecodeEngine> engine) {
  return std::make_unique<DecodeAdapter>(std::move(engine));
}

}  // namespace cedar::actors
