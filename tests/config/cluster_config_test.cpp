#include "config/cluster_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/pipeline.h"
#include "core/crc32c.h"
#include "tests/support/temp_directory.h"

namespace cedar::config {
namespace {

using testing::HasSubstr;

const std::string kNodes = R"(
[[node]]
name = "gw"
roles = ["gateway"]
control = "127.0.0.1:7400"
[[node]]
name = "e1"
roles = ["encoder"]
data = "127.0.0.1:0"
threads = 3
device = "cuda:1"
[[node]]
name = "d1"
roles = ["decoder"]
data = "127.0.0.1:7501"
)";

TEST(ClusterConfig, NodesHaveTheSharedSettingsUnlessTheyOverrideThem) {
  const auto config = parse_cluster_config(
      "[model]\ndirectory = \"m\"\n[engine]\nthreads = 2\n[http]\nport = 0\n" + kNodes, "c.toml");
  ASSERT_TRUE(config) << config.error().message();
  ASSERT_EQ(config->nodes.size(), 3U);
  EXPECT_EQ(config->cluster.heartbeat_interval_ms, 500);
  const NodeSettings* encoder = config->find("e1");
  ASSERT_NE(encoder, nullptr);
  EXPECT_TRUE(encoder->has("encoder"));
  EXPECT_FALSE(encoder->has("decoder"));
  const ServeConfig mine = config->serve_config(*encoder);
  EXPECT_EQ(mine.engine.threads, 3);
  EXPECT_EQ(mine.model.device, "cuda:1");
  EXPECT_EQ(mine.model.directory, "m");
  const ServeConfig other = config->serve_config(*config->find("d1"));
  EXPECT_EQ(other.engine.threads, 2);
  EXPECT_EQ(other.model.device, "cpu");
  EXPECT_EQ(config->find("nobody"), nullptr);
}

// Otherwise UCX takes any device, such as a bridge of containers that goes while it is used.
TEST(ClusterConfig, NodesOnTheLoopbackUseItsDeviceUnlessToldOtherwise) {
  auto config = parse_cluster_config(kNodes, "c.toml");
  ASSERT_TRUE(config) << config.error().message();
  NodeSettings node = *config->find("e1");
  EXPECT_EQ(config->data_settings(node).devices, "lo");
  node.data = "10.1.2.3:7500";
  EXPECT_EQ(config->data_settings(node).devices, "");
  node.data = "localhost:7500";
  config->data.devices = "eth1";
  EXPECT_EQ(config->data_settings(node).devices, "eth1");
}

TEST(ClusterConfig, NodesRegisterWithEveryGatewayOrWithThoseNamed) {
  const auto config = parse_cluster_config(kNodes + R"(gateways = ["g2"]
[[node]]
name = "g2"
roles = ["gateway", "encoder"]
control = "127.0.0.1:7401"
data = "127.0.0.1:7502"
http_port = 0
)",
                                           "c.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->gateways_of(*config->find("e1")).size(), 2U);
  const auto named = config->gateways_of(*config->find("d1"));
  ASSERT_EQ(named.size(), 1U);
  EXPECT_EQ(named[0]->name, "g2");
}

TEST(ClusterConfig, TheIdOfANodeIsTheChecksumOfItsName) {
  NodeSettings node;
  node.name = "123456789";
  EXPECT_EQ(node.id(), NodeId(0xE3069283));
}

struct BadCase {
  std::string text;
  const char* complaint;
};

class BadClusterConfig : public testing::TestWithParam<BadCase> {};

TEST_P(BadClusterConfig, NamesTheKeyAndTheValue) {
  const auto config = parse_cluster_config(GetParam().text, "bad.toml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Errc::invalid_config);
  EXPECT_THAT(config.error().context, HasSubstr(GetParam().complaint));
  EXPECT_THAT(config.error().context, HasSubstr("bad.toml"));
}

std::string node(const std::string& lines) { return kNodes + "[[node]]\n" + lines; }

INSTANTIATE_TEST_SUITE_P(
    Table, BadClusterConfig,
    testing::Values(
        BadCase{"", "the cluster has no nodes"},
        BadCase{"node = 3", "node must be an array of tables"},
        BadCase{"[node]\nname = \"x\"", "node must be an array of tables"},
        BadCase{"node = [1]", "node must be an array of tables"},
        BadCase{node("name = \"gw\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\""),
                "node[3].name must be unique, got \"gw\" a second time"},
        BadCase{node("name = \"a b\"\nroles = [\"encoder\"]"), "got \"a b\""},
        BadCase{node("roles = [\"encoder\"]"), "node[3].name must be 1 to 64 letters"},
        BadCase{node("name = \"x\"\nroles = [\"writer\"]"),
                "node[3].roles may hold gateway, encoder, decoder, engram, indexer, cache, got "
                "\"writer\""},
        BadCase{node("name = \"x\""), "node x.roles must name at least one role"},
        BadCase{node("name = \"x\"\nroles = [\"encoder\", \"encoder\"]"),
                "node x.roles must not repeat, got \"encoder\" twice"},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]"), "node x.data must be host:port"},
        BadCase{node("name = \"x\"\nroles = [\"engram\"]"), "node x.data must be host:port"},
        BadCase{
            node("name = \"x\"\nroles = [\"engram\"]\ndata = \"127.0.0.1:0\"\nengram_shard = 2\n"
                 "engram_shards = 2"),
            "node x.engram_shard must be less than engram_shards, 2, got 2"},
        BadCase{node("name = \"x\"\nroles = [\"engram\"]\ndata = \"127.0.0.1:0\"\nengram_memory = "
                     "\"ram\""),
                "node[3].engram_memory must be one of mapped, resident, got \"ram\""},
        BadCase{"[engine]\nengram = \"service\"\n" + kNodes,
                "node e1.engram is \"service\", but no node has the role engram"},
        BadCase{
            "[engine]\nengram = \"service\"\n" +
                node(
                    "name = \"x\"\nroles = [\"engram\"]\ndata = \"127.0.0.1:0\"\nengram_shard = 1\n"
                    "engram_shards = 2"),
            "node e1.engram is \"service\", but no node serves engram_shard 0 of 2"},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1\""),
                "node x.data must be host:port, got \"127.0.0.1\""},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:70000\""),
                "got \"127.0.0.1:70000\""},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\n"
                     "metrics = \"9400\""),
                "node x.metrics must be host:port, got \"9400\""},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\n"
                     "metrics = \"a-host:9400\""),
                "node x.metrics must have an IP address or localhost for its host, got "
                "\"a-host:9400\""},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\n"
                     "metrics = \"127.0.0.1:7501\""),
                "node x.metrics is \"127.0.0.1:7501\", which is d1.data, too"},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\n"
                     "metrics = \"127.0.0.1:9400\"") +
                    "\n[[node]]\nname = \"y\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\n"
                    "metrics = \"127.0.0.1:9400\"\n",
                "node y.metrics is \"127.0.0.1:9400\", which is x.metrics, too"},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"0.0.0.0:1\""),
                "node x.data must be an address that other nodes can reach, got \"0.0.0.0:1\""},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:7501\""),
                "node x.data is \"127.0.0.1:7501\", which is d1.data, too"},
        BadCase{node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"10.0.0.1:7501\""),
                "a cluster over a network needs cluster.secret_file, which is \"\""},
        BadCase{
            node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\n"
                 "device = \"cuda:1\"\nindex_service_min_tokens = 9"),
            "node x.index_service_min_tokens must be 0 with device = \"cuda:1\": indexers answer "
            "stages with device = \"cpu\" alone, got 9"},
        BadCase{node("name = \"x\"\nroles = [\"indexer\"]\ndata = \"127.0.0.1:0\"\n"
                     "indexer_mib = 0"),
                "node[3].indexer_mib must be in [1, 65536], got 0"},
        BadCase{node("name = \"x\"\nroles = [\"gateway\"]\nhttp_port = 0"),
                "node x.control must be host:port"},
        BadCase{node("name = \"x\"\nroles = [\"gateway\"]\ncontrol = \"127.0.0.1:0\""),
                "node x.control must have a port that nodes can dial, got \"127.0.0.1:0\""},
        BadCase{node("name = \"x\"\nroles = [\"gateway\"]\ncontrol = \"127.0.0.1:7401\""),
                "node x.http_port is \"127.0.0.1:8080\", which is gw.http_port, too"},
        BadCase{node("name = \"x\"\nroles = [\"cache\"]\ncontrol = \"127.0.0.1:1\""),
                "node x.control is for gateways only"},
        BadCase{
            node("name = \"x\"\nroles = [\"cache\"]\ndata = \"127.0.0.1:0\"\ngateways = [\"d1\"]"),
            "node x.gateways must be names of gateways, got \"d1\""},
        BadCase{node("name = \"x\"\nroles = [\"cache\"]\ndevice = \"tpu\""),
                "node x.device must be cpu, cuda or cuda:N, got \"tpu\""},
        BadCase{node("name = \"x\"\nroles = [\"cache\"]\nthreads = -1"),
                "node[3].threads must be in [0, 1024], got -1"},
        BadCase{node("name = \"x\"\nrole = [\"cache\"]"), "node[3].role is no known setting"},
        BadCase{"[[node]]\nname = \"e\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"",
                "no node has the role gateway"},
        BadCase{"[cluster]\nlost_after_ms = 900\n" + kNodes,
                "cluster.lost_after_ms must be at least two heartbeat intervals, 1000, got 900"},
        BadCase{"[cluster]\nname = \"\"\n" + kNodes, "cluster.name must be 1 to 64 letters"},
        BadCase{"[tls]\nenabled = true\n" + kNodes,
                "tls.certificate must name a file when tls.enabled is true"},
        BadCase{"[tls]\nenabled = 1\n" + kNodes, "tls.enabled must be true or false"},
        BadCase{"[http]\nport = 70000\n" + kNodes, "http.port must be in [0, 65535], got 70000"},
        BadCase{"[clutser]\n" + kNodes, "clutser is no known setting"}));

TEST(ClusterConfig, StagesMayDifferInWhereTheirRowsComeFrom) {
  const auto config = parse_cluster_config(
      kNodes +
          "engram = \"service\"\n[[node]]\nname = \"t0\"\nroles = [\"engram\"]\n"
          "data = \"127.0.0.1:0\"\nengram_shards = 2\n[[node]]\nname = \"t1\"\n"
          "roles = [\"engram\"]\ndata = \"127.0.0.1:0\"\nengram_shard = 1\nengram_shards = 2\n",
      "c.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->serve_config(*config->find("d1")).engine.engram, "service");
  EXPECT_EQ(config->serve_config(*config->find("e1")).engine.engram, "local");
  EXPECT_EQ(config->find("t1")->engram_shard, 1);
}

/// Nodes of the pipeline "p", each of these lines one of them.
std::string pipeline(const std::vector<std::string>& lines) {
  std::string text = kNodes;
  for (size_t i = 0; i < lines.size(); ++i) {
    text += "[[node]]\nname = \"p" + std::to_string(i) +
            "\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\npipeline = \"p\"\n" + lines[i] +
            '\n';
  }
  return text;
}

TEST(ClusterConfig, APipelinesNodesAreInTheOrderOfTheirLayers) {
  const auto config = parse_cluster_config(
      pipeline({"layers = \"14-19\"", "layers = \"0-12\"\npipeline_depth = 7", "layers = \"13\""}),
      "c.toml");
  ASSERT_TRUE(config) << config.error().message();
  const auto ranks = pipeline_ranks(*config, "p");
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_EQ(ranks[0].node->name, "p1");
  EXPECT_EQ(ranks[0].node->pipeline_depth, 7);
  EXPECT_EQ(ranks[1].node->name, "p2");
  EXPECT_EQ(ranks[1].layers.first, 13);
  EXPECT_EQ(ranks[1].layers.last, 14);
  EXPECT_EQ(ranks[2].layers.last, 20);
  EXPECT_TRUE(pipeline_ranks(*config, "q").empty());
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, BadClusterConfig,
    testing::Values(
        BadCase{pipeline({"layers = \"0-3\"", "layers = \"5-6\""}),
                "node p1.layers pipeline \"p\": nobody has layers 4-4, got \"5-6\""},
        BadCase{pipeline({"layers = \"1-3\"", "layers = \"4-6\""}),
                "node p0.layers pipeline \"p\": nobody has layers 0-0, got \"1-3\""},
        BadCase{pipeline({"layers = \"0-3\"", "layers = \"3-6\""}),
                "node p1.layers pipeline \"p\": layer 3 belongs to another node already"},
        BadCase{pipeline({"layers = \"0-3\""}), "node p0.pipeline must have at least two nodes"},
        BadCase{pipeline({"", "layers = \"0-3\""}),
                "node p0.layers must be the node's layers of pipeline \"p\", got \"\""},
        BadCase{pipeline({"layers = \"0-x\"", "layers = \"1\""}),
                "node p0.layers must be like \"8-13\", first and last layer, got \"0-x\""},
        BadCase{pipeline({"layers = \"3-2\"", "layers = \"4\""}), "got \"3-2\""},
        BadCase{
            pipeline({"layers = \"0\"\nkv_pool_blocks = 9", "layers = \"1\""}),
            "node p1.kv_pool_blocks must be that of all nodes of pipeline \"p\", 9 at p0, got 0"},
        BadCase{pipeline({"layers = \"0\"", "layers = \"1\"\nmax_sequences = 9"}),
                "node p1.max_sequences must be that of all nodes"},
        BadCase{pipeline({"layers = \"0\"", "layers = \"1\"\nprefill_chunk_tokens = 9"}),
                "node p1.prefill_chunk_tokens must be that of all nodes"},
        BadCase{pipeline({"layers = \"0\"\npipeline_depth = 65", "layers = \"1\""}),
                "pipeline_depth must be in [0, 64], got 65"},
        BadCase{
            node("name = \"x\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\nlayers = \"0-3\""),
            "node x.layers needs a pipeline that these layers belong to"},
        BadCase{
            node("name = \"x\"\nroles = [\"decoder\"]\ndata = \"127.0.0.1:0\"\npipeline = \"q\"\n"
                 "layers = \"0-3\""),
            "node x.pipeline must have at least two nodes, got \"q\" alone"},
        BadCase{node("name = \"x\"\nroles = [\"decoder\", \"encoder\"]\ndata = \"127.0.0.1:0\"\n"
                     "pipeline = \"q\"\nlayers = \"0-3\""),
                "node x.pipeline needs one of the roles encoder and decoder"},
        BadCase{pipeline({"layers = \"0\""}) +
                    "[[node]]\nname = \"x\"\nroles = [\"decoder\"]\ndata = \"127.0.0.1:0\"\n"
                    "pipeline = \"p\"\nlayers = \"1\"\n",
                "node x.pipeline has nodes of the roles encoder and decoder, got \"p\""},
        BadCase{node("name = \"x\"\nroles = [\"cache\"]\ndata = \"127.0.0.1:0\"\npipeline = \"q\"\n"
                     "layers = \"0-3\""),
                "node x.pipeline needs one of the roles encoder and decoder"},
        BadCase{
            node("name = \"x*\"\nroles = [\"encoder\"]\ndata = \"127.0.0.1:0\"\npipeline = \"q\"\n"
                 "layers = \"0-3\""),
            "node x*.pipeline needs a node for each part of its layers, not a pattern"}));

TEST(ClusterConfig, PathsAreRelativeToTheFile) {
  const test::TempDirectory directory;
  const std::string path = directory.path() + "/cluster.toml";
  std::ofstream(path) << "[cluster]\nsecret_file = \"keys/secret\"\n[model]\ndirectory = "
                         "\"../model\"\n"
                      << kNodes
                      << "model_directory = \"/absolute\"\n[[keys]]\nfile = \"keys/anna\"\n";
  const auto config = load_cluster_config(path);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->cluster.secret_file, directory.path() + "/keys/secret");
  ASSERT_EQ(config->serve.keys.size(), 1U);
  EXPECT_EQ(config->serve.keys[0].file, directory.path() + "/keys/anna");
  const std::string parent = std::filesystem::path(directory.path()).parent_path().string();
  EXPECT_EQ(config->find("gw")->model_directory, parent + "/model");
  EXPECT_EQ(config->find("d1")->model_directory, "/absolute");
}

TEST(ClusterConfig, WhatIsShownOfANodeIsTomlWithEverythingInIt) {
  const auto config = parse_cluster_config(
      "[engine]\nthreads = 2\n" + kNodes + "[[keys]]\nname = \"anna\"\n", "c.toml");
  ASSERT_TRUE(config) << config.error().message();
  const std::string text = show_node(*config, *config->find("e1"));
  EXPECT_THAT(text, HasSubstr("[[node]]\nname = \"e1\"\nroles = [\"encoder\"]\n"));
  EXPECT_THAT(text, HasSubstr("lost_after_ms = 2000\n"));
  EXPECT_THAT(text, HasSubstr("\n[engine]\nthreads = 3\n"));
  EXPECT_THAT(text, HasSubstr("\n[[keys]]\nname = \"anna\"\n"));
  EXPECT_TRUE(is_cluster_config(text));
  // It lacks the other nodes and nothing else.
  const auto again = parse_cluster_config(text, "again");
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().context, HasSubstr("no node has the role gateway"));
}

TEST(ClusterConfig, APatternDescribesAnyNumberOfNodes) {
  const std::string secret = "[cluster]\nsecret_file = \"s\"\n";
  const auto config = parse_cluster_config(secret + kNodes + R"(
[[node]]
name = "reader-*"
roles = ["encoder"]
data = "*:7500"
threads = 5
[[node]]
name = "reader-big-*"
roles = ["encoder"]
data = "host-*.local:0"
[[node]]
name = "reader-big-1"
roles = ["encoder"]
data = "10.0.0.9:0"
)",
                                           "c.toml");
  ASSERT_TRUE(config) << config.error().message();
  const auto reader = config->node("reader-7f9c");
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(reader->name, "reader-7f9c");
  EXPECT_EQ(reader->data, "7f9c:7500");
  EXPECT_EQ(reader->threads, 5);
  EXPECT_EQ(config->gateways_of(*reader).size(), 1U);
  EXPECT_NE(reader->id(), config->node("reader-7f9d")->id());
  // The longer pattern, and a node's own entry before any.
  EXPECT_EQ(config->node("reader-big-2")->data, "host-2.local:0");
  EXPECT_EQ(config->node("reader-big-1")->data, "10.0.0.9:0");
  for (const char* none : {"reader-", "reader-*", "writer-1", "reader-a b", ""}) {
    EXPECT_FALSE(config->node(none).has_value()) << none;
  }
}

TEST(ClusterConfig, PatternsThatCannotBeAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"name = \"g*\"\nroles = [\"gateway\"]\ncontrol = \"10.0.0.1:1\"\n",
       "name of a gateway must be known"},
      {"name = \"a*b\"\nroles = [\"encoder\"]\ndata = \"10.0.0.1:1\"\n", "may end in '*'"},
      {"name = \"e2\"\nroles = [\"encoder\"]\ndata = \"*:1\"\n", "may have a '*'"},
  };
  for (const auto& [text, complaint] : cases) {
    const auto config = parse_cluster_config(
        "[cluster]\nsecret_file = \"s\"\n" + kNodes + "[[node]]\n" + text, "c.toml");
    ASSERT_FALSE(config) << text;
    EXPECT_THAT(config.error().context, HasSubstr(complaint)) << text;
  }
}

TEST(ClusterConfig, AFileOfServeIsNoCluster) {
  EXPECT_FALSE(is_cluster_config("[http]\nport = 1\n"));
  EXPECT_FALSE(is_cluster_config("no toml ["));
  EXPECT_TRUE(is_cluster_config("[cluster]\n"));
  EXPECT_TRUE(is_cluster_config("[[node]]\n"));
}

TEST(ClusterConfig, EveryExampleIsValid) {
  int examples = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(CEDAR_SOURCE_DIR) + "/config/examples")) {
    const auto config = load_cluster_config(entry.path().string());
    EXPECT_TRUE(config) << config.error().message();
    ++examples;
  }
  EXPECT_GE(examples, 3);
}

TEST(HostPort, TakesNamesAndBothKindsOfAddresses) {
  EXPECT_EQ(parse_host_port("node-1:80")->host, "node-1");
  EXPECT_EQ(parse_host_port("10.0.0.1:65535")->port, 65535);
  EXPECT_EQ(parse_host_port("[::1]:7")->host, "::1");
  for (const char* bad :
       {"", ":", "a", "a:", ":1", "a:b", "a:65536", "a:-1", "::1:7", "a:000001"}) {
    EXPECT_FALSE(parse_host_port(bad)) << bad;
  }
}

}  // namespace
}  // namespace cedar::config
