/* test_sha256.c - the hash and the keyed hash against the examples of FIPS 180-4 and RFC 4231. */
#include "tests/c/support/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/sha256.h"

static void assert_digest(const uint8_t *digest, const char *expected) {
  char text[2 * MS_SHA256_BYTES + 1];
  for (int i = 0; i < MS_SHA256_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
  assert_string_equal(text, expected);
}

static void hashes_are_those_of_the_standard(void **state) {
  (void)state;
  uint8_t digest[MS_SHA256_BYTES];
  ms_sha256("", 0, digest);
  assert_digest(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  ms_sha256("abc", 3, digest);
  assert_digest(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  ms_sha256(two_blocks, strlen(two_blocks), digest);
  assert_digest(digest, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  char *million = malloc(1000000);
  assert_non_null(million);
  memset(million, 'a', 1000000);
  ms_sha256(million, 1000000, digest);
  free(million);
  assert_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void keyed_hashes_are_those_of_the_standard(void **state) {
  (void)state;
  uint8_t mac[MS_SHA256_BYTES], key[131];
  ms_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, mac);
  assert_digest(mac, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  memset(key, 0x0b, 20);
  ms_hmac_sha256(key, 20, "Hi There", 8, mac);
  assert_digest(mac, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  memset(key, 0xaa, sizeof key);
  const char *text = "Test Using Larger Than Block-Size Key - Hash Key First";
  ms_hmac_sha256(key, sizeof key, text, strlen(text), mac);
  assert_digest(mac, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void digests_are_compared_whole(void **state) {
  (void)state;
  uint8_t a[MS_SHA256_BYTES] = {1, 2, 3}, b[MS_SHA256_BYTES] = {1, 2, 3};
  assert_int_equal(ms_same_digest(a, b), 1);
  b[MS_SHA256_BYTES - 1] = 1;
  assert_int_equal(ms_same_digest(a, b), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(hashes_are_those_of_the_standard),
      TEST(keyed_hashes_are_those_of_the_standard),
      TEST(digests_are_compared_whole),
  };
  return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}
