#include "actors/service_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cedar::actors {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

DirectoryEntry entry(const std::string& node, uint64_t generation,
                     std::vector<Service> services = {Service{}}) {
  return {node, {"127.0.0.1", 7000, 3, generation}, std::move(services)};
}

std::vector<std::string> names(const ServiceDirectory& directory,
                               ServiceRole role = ServiceRole::engram) {
  std::vector<std::string> names;
  for (const ServiceProvider& provider : directory.services(role)) {
    names.push_back(provider.node + ' ' + std::to_string(provider.endpoint.generation));
  }
  return names;
}

TEST(ServiceDirectory, HasWhatAnyGatewayListsInItsLatestLife) {
  ServiceDirectory directory;
  directory.update("g1", {entry("a", 1), entry("b", 5)});
  directory.update("g2", {entry("b", 4), entry("c", 2)});
  EXPECT_THAT(names(directory), ElementsAre("a 1", "b 5", "c 2"));
  directory.update("g2", {entry("b", 6)});
  EXPECT_THAT(names(directory), ElementsAre("a 1", "b 6"));
  directory.update("g1", {});
  EXPECT_THAT(names(directory), ElementsAre("b 6"));
}

TEST(ServiceDirectory, FindsServicesByRole) {
  ServiceDirectory directory;
  const Service shard{ServiceRole::engram, 1, 2, "rows"};
  directory.update("g", {entry("a", 1, {shard, Service{ServiceRole::indexer, 0, 1, ""}})});
  ASSERT_EQ(directory.services(ServiceRole::engram).size(), 1u);
  const ServiceProvider provider = directory.services(ServiceRole::engram)[0];
  EXPECT_EQ(provider.service, shard);
  EXPECT_EQ(provider.target().port, 7000);
  EXPECT_EQ(provider.target().identity, (transport::NodeIdentity{NodeId(3), 1}));
  EXPECT_THAT(names(directory, ServiceRole::indexer), ElementsAre("a 1"));
  EXPECT_THAT(names(directory, ServiceRole::cache), IsEmpty());
}

TEST(ServiceDirectory, AListIsLostWithItsGatewayUnlessItIsTheLast) {
  ServiceDirectory directory;
  directory.update("g1", {entry("a", 1)});
  directory.update("g2", {entry("b", 1)});
  directory.lose("g1");
  EXPECT_THAT(names(directory), ElementsAre("b 1"));
  directory.lose("g2");
  EXPECT_THAT(names(directory), ElementsAre("b 1"));
  directory.lose("nobody");
  directory.update("g1", {entry("a", 2)});
  EXPECT_THAT(names(directory), ElementsAre("a 2"));
}

TEST(ServiceDirectory, TellsOfChangesAndOfNothingElse) {
  ServiceDirectory directory;
  int changes = 0;
  auto handle = directory.on_change([&] {
    ++changes;
    EXPECT_LE(directory.services(ServiceRole::engram).size(), 1u);  // it may be asked
  });
  directory.update("g1", {entry("a", 1)});
  EXPECT_EQ(changes, 1);
  const uint64_t version = directory.version();
  directory.update("g1", {entry("a", 1)});
  directory.update("g2", {entry("a", 1)});
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(directory.version(), version);
  directory.update("g1", {});
  EXPECT_EQ(changes, 1);  // g2 lists it
  directory.update("g2", {});
  EXPECT_EQ(changes, 2);
  EXPECT_GT(directory.version(), version);
  handle.reset();
  directory.update("g2", {entry("a", 1)});
  EXPECT_EQ(changes, 2);
}

}  // namespace
}  // namespace cedar::actors
