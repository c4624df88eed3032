#include "engine/engram_source.h"

#include "core/check.h"
#include "engine/engram_tables.h"
#include "engine/loaded_model.h"

namespace cedar::engine {
namespace {

class LocalEngramSource final : public EngramSource {
 public:
  explicit LocalEngramSource(std::shared_ptr<const EngramTables> tables)
      : tables_(std::move(tables)) {}

  Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) override {
    return tables_->copy(layer, row_ids, packed);
  }

 private:
  std::shared_ptr<const EngramTables> tables_;
};

}  // namespace

std::shared_ptr<EngramSource> local_engram_source(std::shared_ptr<const LoadedModel> model) {
  const model::Checkpoint* checkpoint = &model->checkpoint;
  auto tables = EngramTables::create({std::move(model), checkpoint}, EngramShard{});
  CEDAR_ASSERT(tables.has_value(), "one shard of one");
  return std::make_shared<LocalEngramSource>(std::move(*tables));
}

}  // namespace cedar::engine
