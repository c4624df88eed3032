#pragma once
// A stage cut by layers over several nodes, with everything else whole.

#include <memory>
#include <string>
#include <vector>

#include "actors/pipeline.h"
#include "actors/service_directory.h"
#include "tests/actors/real_engines_fixture.h"
#include "transport/calls.h"

namespace cedar::actors {

struct NothingMore {};

/// `More`: what a rank has besides.
template <class Part, class More = NothingMore>
class PipelineFixture : public RemoteEnginesTest {
 protected:
  struct Rank : More {
    Node* node = nullptr;
    std::unique_ptr<transport::Calls> calls;
    std::unique_ptr<Part> part;  // null at the face
  };

  /// `depth` 0: as many steps under way as ranks.
  PipelineFixture(std::string name, size_t depth) : name_(std::move(name)), depth_(depth) {}

  /// Makes the face of rank 0, the part of any other.
  virtual void start(Rank& rank, const PipelinePlace& here) = 0;

  void TearDown() override {
    for (const auto& rank : ranks_) rank->calls->shutdown();
    for (const auto& rank : ranks_) rank->part.reset();
    HandoffFixture::TearDown();
  }

  Rank& add_rank(size_t number, uint64_t generation = 1) {
    ranks_.push_back(std::make_unique<Rank>());
    Rank& rank = *ranks_.back();
    rank.calls = std::make_unique<transport::Calls>();
    change_options_ = [&](transport::TransportOptions& data) {
      data.identity.generation = generation;
      rank.calls->install(data);
    };
    rank.node = &add_node();
    change_options_ = {};
    rank.calls->attach(rank.node->transport());
    rank.node->plane.calls = rank.calls.get();
    rank.node->plane.directory = &directory_;
    rank.node->script->blocks = blocks_;
    start(rank, place(number));
    return rank;
  }
  PipelinePlace place(size_t rank) const {
    PipelinePlace place;
    place.name = name_;
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) place.ranks.push_back({cuts_[i], cuts_[i + 1]});
    place.rank = rank;
    place.depth = depth_ > 0 ? depth_ : place.ranks.size();
    return place;
  }
  engine::EngineOptions rank_options() const {
    engine::EngineOptions options = options_;
    options.kv_pool_blocks = blocks_;
    return options;
  }
  static std::shared_ptr<const engine::LoadedModel> load(model::Role role,
                                                         const PipelinePlace& here) {
    engine::Runtime runtime{engine::EngineOptions{}};
    return *engine::load_model(testing::mini_path(), role, runtime.context(), {},
                               here.ranks[here.rank]);
  }
  /// What a gateway would list.
  void list(const std::vector<Rank*>& parts) {
    std::vector<DirectoryEntry> entries;
    for (const Rank* rank : parts) {
      entries.push_back({"part-" + std::to_string(rank->node->plane.endpoint.node),
                         rank->node->plane.endpoint,
                         {rank->part->description()}});
    }
    directory_.update("gateway", std::move(entries));
  }
  /// Face first.
  std::vector<Rank*> add_pipeline(std::vector<LayerId> cuts) {
    cuts_ = std::move(cuts);
    std::vector<Rank*> ranks;
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) ranks.push_back(&add_rank(i));
    list({ranks.begin() + 1, ranks.end()});
    return ranks;
  }

  int64_t blocks_ = 64;  // of a rank's pool
  std::vector<LayerId> cuts_;
  ServiceDirectory directory_;
  std::vector<std::unique_ptr<Rank>> ranks_;

 private:
  const std::string name_;
  const size_t depth_;
};

}  // namespace cedar::actors
