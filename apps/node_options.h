#pragma once
// From the file of a cluster to the options of one of its processes.

#include "actors/cluster_node.h"
#include "apps/model_setup.h"
#include "config/cluster_config.h"
#include "core/result.h"
#include "monitoring/metric_table.h"

namespace cedar::apps {

/// Everything but the model's digests. Errors: invalid_config for a secret file that cannot be read.
Result<actors::ClusterNodeOptions> node_options(const config::ClusterConfig& config,
                                                const config::NodeSettings& node);

/// What the node counts.
monitoring::RoleSet metric_roles(const actors::ClusterNodeOptions& options,
                                 const config::NodeSettings& node);

/// Whether every pipeline ends where the model's encoder does. Errors: invalid_config naming node and layers, and those of
/// a model that cannot be read.
Status check_pipeline_ends(const config::ClusterConfig& config);

/// What all nodes must agree on: the layout of KV blocks, the model's configuration and, when `weights` is not null, its
/// weights.
void identify_model(actors::ClusterNodeOptions& options, const ModelText& text,
                    const model::Checkpoint* weights);

/// What the blocks in a cache's directory are of, besides their keys.
std::string cache_identity(const ModelText& text);

}  // namespace cedar::apps
