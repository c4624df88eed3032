#include "engine/engine.h"

#include <deque>
#include <map>

namespace cedar::engine {

struct Engine::Impl {
  struct Waiting {
    DecodeRequest request;
    std::vector<ImageRows> images;
  };
  struct Live {
    Sink sink;
    int64_t blocks_moved = 0;
  };
  std::unique_ptr<PrefillEngine> prefill;
  std::unique_ptr<DecodeEngine> decode;
  std::deque<Waiting> queue;  // admitted in order as room allows
  std::map<RequestId, Live> live;

  void fail(RequestId id, Error error);
  Status admit();
  Status read_chunk();
  Status write_step();
};

Engine::Engine() = default;
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const LoadedModel> model,
                                               const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine());
  engine->impl_ = std::make_unique<Impl>();
  const auto engram = local_engram_source(model);
  CEDAR_TRY(engine->impl_->prefill, PrefillEngine::create(model, engram, options));
  CEDAR_TRY(engine->impl_->decode, DecodeEngine::create(model, engram, options));
  return engine;
}

Status Engine::submit(DecodeRequest request, std::vector<ImageRows> images, Sink sink) {
  const RequestId id = request.id;
  if (!impl_->live.emplace(id, Impl::Live{std::move(sink), 0}).second) {
    return make_error(Errc::invalid_argument,
                      "request " + std::to_string(id.value) + " is already queued");
  }
  impl_->queue.push_back({std::move(request), std::move(images)});
  return {};
}

void Engine::cancel(RequestId id) {
  impl_->prefill->release(id);
  impl_->decode->cancel(id);
  std::erase_if(impl_->queue, [&](const Impl::Waiting& w) { return w.request.id == id; });
  impl_->live.erase(id);
}

bool Engine::idle() const { return impl_->live.empty(); }

void Engine::Impl::fail(RequestId id, Error error) {
  prefill->release(id);
  decode->cancel(id);
  const auto found = live.find(id);
  if (found == live.end()) return;
  TokenEvent event;
  event.id = id;
  event.finish = FinishReason::failed;
  event.error = std::move(error);
  const Sink sink = std::move(found->second.sink);
  live.erase(found);
  sink(event);
}

Status Engine::Impl::admit() {
  while (!queue.empty()) {
    Waiting& next = queue.front();
    const RequestId id = next.request.id;
    PrefillRequest reading{id, tokens_to_read(next.request), next.images};
    Status status = decode->reserve(next.request);
    if (status) {
      status = prefill->submit(std::move(reading));
      if (!status) decode->cancel(id);
    }
    // No room now: the request stays first in line, and finishing sequences will make room.
    if (!status && status.error().code == Errc::overloaded && live.size() > queue.size()) return {};
    queue.pop_front();
    if (!status) fail(id, std::move(status.error()));
  }
  return {};
}

Status Engine::Impl::read_chunk() {
  CEDAR_TRY(const std::vector<PrefillEvent> events, prefill->step());
  for (const PrefillEvent& event : events) {
    int64_t& moved = live.at(event.id).blocks_moved;
    for (; moved < event.blocks_ready; ++moved) {
      CEDAR_CHECK_OK(decode->import_block(event.id, moved, prefill->block(event.id, moved)));
    }
    if (!event.finished) continue;
    CEDAR_TRY(Handoff handoff, prefill->take_handoff(event.id));
    CEDAR_CHECK_OK(decode->start(event.id, std::move(handoff)));
    prefill->release(event.id);
  }
  return {};
}

Status Engine::Impl::write_step() {
  CEDAR_TRY(const std::vector<TokenEvent> events, decode->step());
  for (const TokenEvent& event : events) {
    const auto found = live.find(event.id);
    if (found == live.end()) continue;
    const Sink sink = found->second.sink;
    if (event.finish != FinishReason::none) live.erase(found);
    sink(event);
  }
  return {};
}

Status Engine::step() {
  CEDAR_CHECK_OK(impl_->admit());
  CEDAR_CHECK_OK(impl_->read_chunk());
  return impl_->write_step();
}

}  // namespace cedar::engine
