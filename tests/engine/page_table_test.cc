#include "engine/page_table.h"

#include <catch2/catch.hpp>

namespace tandem {

TEST_CASE("a page is free again when its last holder lets go") {
  PagePool pool({2, 1});
  PageId a = pool.allocate(0), b = pool.allocate(0);
  CHECK((a >= 0 && b >= 0 && a != b));
  CHECK(pool.allocate(0) == -1);
  CHECK(pool.allocate(1) == 0);
  pool.share(0, a);
  CHECK((pool.n_shared() == 1 && pool.n_used() == 3 && pool.n_free() == 0));
  pool.release(0, a);
  CHECK((pool.n_shared() == 0 && pool.n_free(0) == 0));
  pool.release(0, a);
  CHECK(pool.n_free(0) == 1);
  CHECK(pool.allocate(0) == a);
}

TEST_CASE("growing takes all pages or none") {
  PagePool pool({8, 3});
  std::vector<int> windows = {0, 8};
  PageTable table(&pool, &windows, 4);
  CHECK(table.grow(9));
  CHECK((table.n_entries(0) == 3 && table.n_entries(1) == 3 && pool.n_used() == 6));
  CHECK(table.grow(12));
  CHECK(pool.n_used() == 6);
  CHECK_FALSE(table.grow(13));  // group 1 has none left
  CHECK(pool.n_used() == 6);
}

TEST_CASE("pages leave the window when no later query can see them") {
  PagePool pool({8, 8});
  std::vector<int> windows = {0, 8};
  {
    PageTable table(&pool, &windows, 4);
    REQUIRE(table.grow(20));
    table.leave_windows(10);  // a query at 10 sees 3..10: page 0 holds position 3
    CHECK(table.pages(1)[0] >= 0);
    table.leave_windows(11);  // 4..11
    CHECK(table.pages(1)[0] == -1);
    CHECK(table.pages(1)[1] >= 0);
    CHECK(table.pages(0)[0] >= 0);  // full attention keeps all
    CHECK((table.n_held(1) == 4 && table.n_held(0) == 5 && pool.n_free(1) == 4));
    table.leave_windows(100);  // beyond the table: only what is there
    CHECK((table.n_held(1) == 0 && pool.n_free(1) == 8));
  }
  CHECK(pool.n_used() == 0);
}

TEST_CASE("a fork shares full pages and owns its partial one") {
  PagePool pool({8, 8});
  std::vector<int> windows = {0, 4};
  PageTable table(&pool, &windows, 4);
  REQUIRE(table.grow(10));
  table.leave_windows(10);
  PageTable fork(&pool, &windows, 4);
  std::vector<PageCopy> copies;
  REQUIRE(fork.fork(table, 10, &copies));
  CHECK((fork.pages(0)[0] == table.pages(0)[0] && fork.pages(0)[1] == table.pages(0)[1]));
  CHECK(fork.pages(0)[2] != table.pages(0)[2]);
  CHECK((fork.pages(1)[0] == -1 && fork.pages(1)[1] == table.pages(1)[1]));
  REQUIRE(copies.size() == 2);
  CHECK((copies[0].group == 0 && copies[0].from == table.pages(0)[2] && copies[0].to == fork.pages(0)[2]));
  CHECK((table.n_exclusive(0) == 1 && fork.n_exclusive(0) == 1 && pool.n_shared() == 3));
  table.clear();
  CHECK((fork.n_exclusive(0) == 3 && pool.n_shared() == 0));
  fork.clear();
  CHECK(pool.n_used() == 0);

  PageTable whole(&pool, &windows, 4);
  REQUIRE(whole.grow(8));
  PageTable twin(&pool, &windows, 4);
  copies.clear();
  REQUIRE(twin.fork(whole, 8, &copies));
  CHECK(copies.empty());  // ends on a page border
}

TEST_CASE("a fork without a free page changes nothing") {
  PagePool pool({3, 3});
  std::vector<int> windows = {0, 0};
  PageTable table(&pool, &windows, 4);
  REQUIRE(table.grow(10));
  PageTable fork(&pool, &windows, 4);
  std::vector<PageCopy> copies;
  CHECK_FALSE(fork.fork(table, 10, &copies));
  CHECK((copies.empty() && fork.n_entries(0) == 0 && pool.n_shared() == 0));
}

TEST_CASE("peak pages bound what a windowed table holds, chunk by chunk") {
  for (int window : {1, 3, 4, 7, 8, 20}) {
    for (int chunk : {1, 2, 5, 16}) {
      PagePool pool({1000});
      std::vector<int> windows = {window};
      PageTable table(&pool, &windows, 4);
      int peak = 0;
      for (int pos = 0; pos < 200; pos += chunk) {
        REQUIRE(table.grow(pos + chunk));
        peak = std::max(peak, table.n_held(0));
        table.leave_windows(pos + chunk);
      }
      INFO("window " << window << " chunk " << chunk);
      CHECK(peak <= peak_pages(window, 4, 200, chunk));
      CHECK(peak + 1 >= peak_pages(window, 4, 200, chunk));
    }
  }
  CHECK(peak_pages(0, 4, 200, 16) == 50);
}

}  // namespace tandem
