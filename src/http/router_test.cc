#include "http/router.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace kvmend::http {
namespace {

Router sample() {
  Router router;
  router.add(Method::kGet, "/a", [](const Request&) { return text_response(200, "got"); });
  router.add(Method::kPut, "/a", [](const Request& r) { return text_response(201, r.body); });
  router.add(Method::kGet, "/bad",
             [](const Request&) -> Response { throw std::runtime_error("secret"); });
  router.add(Method::kGet, "/worse", [](const Request&) -> Response { throw 7; });
  return router;
}

TEST(Router, PicksByMethodAndPath) {
  const Router router = sample();
  EXPECT_EQ(router.dispatch({.path = "/a"}).body, "got");
  EXPECT_EQ(router.dispatch({.method = Method::kHead, .path = "/a"}).status, 200);
  EXPECT_EQ(router.dispatch({.method = Method::kPut, .path = "/a", .body = "x"}).body, "x");
  EXPECT_EQ(router.dispatch({.path = "/a/"}).status, 404);
  const Response refused = router.dispatch({.method = Method::kPost, .path = "/a"});
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.headers, (std::vector<Field>{{"Allow", "GET, PUT"}}));
}

TEST(Router, TurnsExceptionsInto500WithoutTheirText) {
  const Router router = sample();
  for (const char* path : {"/bad", "/worse"}) {
    const Response response = router.dispatch({.path = path});
    EXPECT_EQ(response.status, 500);
    EXPECT_EQ(response.body.find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvmend::http
