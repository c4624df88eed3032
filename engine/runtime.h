#pragma once
// Threads, workspace and context of one engine. Declared first in its owner so that it is destroyed last.

#include <memory>

#include "core/device_memory.h"
#include "engine/options.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

struct LoadedModel;

class Runtime {
 public:
  explicit Runtime(const EngineOptions& options) : pool_(options.threads), arena_(options.device) {
    // Without a stream of its own (no such device) the context is of no use, and says so at its first operation.
    if (auto stream = Stream::create(options.device)) stream_ = std::move(*stream);
    context_.device = options.device;
    context_.pool = &pool_;
    context_.arena = &arena_;
    context_.cuda_stream = stream_.handle();
    context_.cuda_level = options.cuda_level;
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  kernels::KernelContext& context() { return context_; }
  /// Frees the workspace of the previous step.
  void begin_step() { arena_.reset(); }

 private:
  ThreadPool pool_;
  Stream stream_;
  Arena arena_;
  kernels::KernelContext context_;
};

/// Checked and completed options: context and pool sizes from the model where they are 0.
Result<EngineOptions> complete_options(const EngineOptions& options, const LoadedModel& model);

}  // namespace cedar::engine
