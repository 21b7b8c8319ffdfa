#include "transport/local/board.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kvmend::transport::local {
namespace {

std::unique_ptr<PeerBoard> peer_of(const Board& board) {
  auto peer = PeerBoard::map(UniqueFd(::dup(board.fd())));
  EXPECT_TRUE(peer) << peer.error().to_string();
  return peer ? std::move(*peer) : nullptr;
}

TEST(Board, ShowsOpenChunksToPeers) {
  auto board = Board::create();
  ASSERT_TRUE(board);
  const auto peer = peer_of(**board);
  EXPECT_FALSE(peer->is_open(ChunkId(5)));
  EXPECT_TRUE((*board)->open(ChunkId(5)));
  EXPECT_TRUE(peer->is_open(ChunkId(5)));
  EXPECT_FALSE(peer->is_open(ChunkId(5 + config::kLocalChunkSlots)));
  (*board)->close(ChunkId(5));
  EXPECT_FALSE(peer->is_open(ChunkId(5)));
}

TEST(Board, GivesAPlaceToOneChunkAtATime) {
  auto board = Board::create();
  ASSERT_TRUE(board);
  const ChunkId other(5 + config::kLocalChunkSlots);
  EXPECT_TRUE((*board)->open(ChunkId(5)));
  EXPECT_FALSE((*board)->open(other));
  (*board)->close(other);  // isn't the one that is open
  EXPECT_TRUE(peer_of(**board)->is_open(ChunkId(5)));
  (*board)->close(ChunkId(5));
  EXPECT_TRUE((*board)->open(other));
}

TEST(Board, ShowsWhatIsBeingRead) {
  auto board = Board::create();
  ASSERT_TRUE(board);
  const auto peer = peer_of(**board);
  (*board)->mark(1, ChunkId(9));
  EXPECT_TRUE(peer->is_reading(ChunkId(9)));
  EXPECT_FALSE(peer->is_reading(ChunkId(8)));
  (*board)->mark(1, ChunkId());
  EXPECT_FALSE(peer->is_reading(ChunkId(9)));
}

TEST(Board, OnlyItsOwnerMayWriteIt) {
  auto board = Board::create();
  ASSERT_TRUE(board);
  EXPECT_EQ(
      ::mmap(nullptr, sizeof(BoardLayout), PROT_READ | PROT_WRITE, MAP_SHARED, (*board)->fd(), 0),
      MAP_FAILED);
}

TEST(Board, IsNotMappedUnsealedOrOfAnotherSize) {
  UniqueFd unsealed(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), sizeof(BoardLayout)), 0);
  const auto refused = PeerBoard::map(std::move(unsealed));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kProtocolError);
}

}  // namespace
}  // namespace kvmend::transport::local
