/* test_transport_address.c - where ranks listen and which addresses they try: settings, ports, fallbacks. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

static ends all;

static int forget_settings(void **state) {
  (void)state;
  unsetenv("MOONSHARD_INTERFACE");
  unsetenv("MOONSHARD_PORTS");
  ms_error_clear();
  return 0;
}
#define SET(name) cmocka_unit_test_setup_teardown(name, forget_settings, forget_settings)

/* Opens one endpoint with these settings; NULL: unset. */
static int open_with(const char *interface, const char *ports, int rank) {
  if (interface) setenv("MOONSHARD_INTERFACE", interface, 1);
  if (ports) setenv("MOONSHARD_PORTS", ports, 1);
  all.n = 2;
  prepare_end(&all.of[rank], rank, 2);
  int rc = ms_transport_tcp.open(&all.of[rank].config, &all.of[rank].endpoint);
  if (!rc) must(ms_transport_tcp.address(all.of[rank].endpoint, all.addresses[rank]));
  return rc;
}

/* Place i of an address, as a rank of the same machine sees it; "": there is none. */
static const char *place_text(const uint8_t *own, const uint8_t *address, int i) {
  static char text[64];
  struct sockaddr_storage place;
  socklen_t bytes;
  *text = '\0';
  if (ms_tcp_place(own, address, i, &place, &bytes)) ms_tcp_place_text(&place, bytes, text, sizeof text);
  return text;
}

static void H4_an_interface_is_chosen_by_name_address_or_prefix(void **state) {
  static const char *const chosen[] = {"lo", "127.0.0.1", "127.0.0.0/8", "127.0.0.1/32", "126.0.0.0/7"};
  char expected[64];
  (void)state;
  for (int i = 0; i < 5; i++) {
    for (int rank = 0; rank < 2; rank++) must(open_with(chosen[i], NULL, rank));
    snprintf(expected, sizeof expected, "127.0.0.1:%d", port_of_end(all.addresses[1]));
    assert_string_equal(place_text(all.addresses[0], all.addresses[1], 0), expected);
    assert_string_equal(place_text(all.addresses[0], all.addresses[1], 1), "");
    for (int rank = 0; rank < 2; rank++) connect_end(&all, rank);
    for (double end = ms_clock() + 10; !ms_transport_tcp.connected(all.of[0].endpoint) && ms_clock() < end;)
      turn_ends(&all);
    assert_int_equal(ms_transport_tcp.connected(all.of[0].endpoint), 1);
    close_ends(&all);
  }
}

static void H4_ranks_meet_over_ipv6(void **state) {
  (void)state;
  if (open_with("::1", NULL, 0)) {
    print_message("# skipped: this machine has no IPv6\n");
    skip();
  }
  must(open_with("::1", NULL, 1));
  assert_has(place_text(all.addresses[0], all.addresses[1], 0), "[::1]:");
  for (int rank = 0; rank < 2; rank++) connect_end(&all, rank);
  for (double end = ms_clock() + 10; !ms_transport_tcp.connected(all.of[0].endpoint) && ms_clock() < end;)
    turn_ends(&all);
  assert_int_equal(ms_transport_tcp.connected(all.of[0].endpoint), 1);
  close_ends(&all);
}

static void H4_an_unknown_interface_is_named_with_those_that_are_there(void **state) {
  static const char *const unknown[] = {"nosuch0", "203.0.113.7", "203.0.113.0/24", "127.0.0.0/33", "127.0.0.0/", "/8"};
  (void)state;
  for (int i = 0; i < 6; i++) {
    assert_fails(open_with(unknown[i], NULL, 0), MS_EIO, "MOONSHARD_INTERFACE | lo (127.0.0.1) | 10.0.0.0/8");
    assert_null(all.of[0].endpoint);
  }
}

static void H4_ports_come_from_the_range(void **state) {
  char range[32];
  (void)state;
  must(open_with(NULL, NULL, 0)); /* a port that is free now */
  int port = port_of_end(all.addresses[0]);
  snprintf(range, sizeof range, "%d-%d", port, port);
  assert_fails(open_with(NULL, range, 1), MS_EIO, "MOONSHARD_PORTS | in use | longer");
  ms_transport_tcp.close(all.of[0].endpoint);
  must(open_with(NULL, range, 1));
  assert_int_equal(port_of_end(all.addresses[1]), port);
  ms_transport_tcp.close(all.of[1].endpoint);
  static const char *const wrong[] = {"30000", "30000-", "30000-x", "0-5", "6-5", "1-65536", "1-2-3", " 1-2", "-1-5"};
  for (int i = 0; i < 9; i++)
    assert_fails(open_with(NULL, wrong[i], 0), MS_EINVAL, "MOONSHARD_PORTS | first-last | 65535");
}

/* The first place that answers with the right rank is used; the others cost no failure. */
static void H4_places_are_tried_in_order(void **state) {
  (void)state;
  for (int rank = 0; rank < 2; rank++) must(open_with("127.0.0.1", NULL, rank));
  uint8_t *address = all.addresses[1];
  static const uint8_t places[] = {4, 127, 0, 0, 3, 4, 127, 0, 0, 1};
  memcpy(address + 24, places, sizeof places);
  address[7] = 2;
  assert_has(place_text(all.addresses[0], address, 0), "127.0.0.3");
  for (int rank = 0; rank < 2; rank++) connect_end(&all, rank);
  for (double end = ms_clock() + 10; !ms_transport_tcp.connected(all.of[0].endpoint) && ms_clock() < end;)
    turn_ends(&all);
  assert_int_equal(ms_transport_tcp.connected(all.of[0].endpoint), 1);
  assert_int_equal(all.of[0].failures, 0);
  close_ends(&all);
}

/* Something else listens at the first place, and never says a word. */
static void H4_a_place_that_is_silent_is_left(void **state) {
  static const uint8_t places[] = {4, 127, 0, 0, 3, 4, 127, 0, 0, 1};
  (void)state;
  for (int rank = 0; rank < 2; rank++) must(open_with("127.0.0.1", NULL, rank));
  uint8_t *address = all.addresses[1];
  memcpy(address + 24, places, sizeof places);
  address[7] = 2;
  struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port_of_end(address))};
  there.sin_addr.s_addr = htonl(0x7f000003);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&there, sizeof there), 0);
  assert_int_equal(listen(listener, 4), 0);
  ms_wait_scale = 0.05;
  for (int rank = 0; rank < 2; rank++) connect_end(&all, rank);
  for (double end = ms_clock() + 10; !ms_transport_tcp.connected(all.of[0].endpoint) && ms_clock() < end;)
    turn_ends(&all);
  ms_wait_scale = 1;
  assert_int_equal(ms_transport_tcp.connected(all.of[0].endpoint), 1);
  assert_has(all.of[0].endpoint->peers[0].call.why, "127.0.0.3 | no answer");
  close(listener);
  close_ends(&all);
}

static void H4_another_machine_gets_no_loopback_and_not_its_own_addresses(void **state) {
  uint8_t own[MS_TRANSPORT_ADDRESS], there[MS_TRANSPORT_ADDRESS];
  (void)state;
  must(open_with(NULL, NULL, 0));
  close_ends(&all);
  memcpy(own, all.addresses[0], sizeof own);
  static const uint8_t of_own[] = {4, 172, 17, 0, 1}, of_there[] = {4, 127, 0, 0, 1, 4, 172, 17, 0, 1, 4, 10, 0, 0, 9};
  memcpy(own + 24, of_own, sizeof of_own);
  own[7] = 1;
  memcpy(there, own, sizeof there);
  memcpy(there + 24, of_there, sizeof of_there);
  there[7] = 3;
  assert_has(place_text(own, there, 0), "127.0.0.1");
  there[8] ^= 1; /* another machine */
  assert_has(place_text(own, there, 0), "10.0.0.9");
  assert_string_equal(place_text(own, there, 1), "");
}

static void H6_addresses_that_no_transport_made_are_refused(void **state) {
  uint8_t address[MS_TRANSPORT_ADDRESS];
  uint32_t random = 3;
  int peer = 1;
  (void)state;
  must(open_with(NULL, NULL, 0));
  for (int round = 0; round < 2000; round++) {
    for (int i = 0; i < MS_TRANSPORT_ADDRESS; i++) {
      random = random * 1664525 + 1013904223;
      address[i] = (uint8_t)(random >> 24);
    }
    if (round % 2) memcpy(address, all.addresses[0], 24); /* the places after it are random */
    if (round % 2) address[7] = (uint8_t)(1 + round % 255);
    for (int i = 0; i < 50; i++) place_text(all.addresses[0], address, i);
    ms_tcp_check_address(address);
  }
  memset(address, 0, sizeof address);
  assert_fails(ms_transport_tcp.connect(all.of[0].endpoint, 1, &peer, address), MS_EINVAL, "rank 1 | transport tcp");
  close_ends(&all);
}

static void H6_hosts_without_a_token_are_not_connected(void **state) {
  int peer = 1;
  (void)state;
  all.n = 2;
  prepare_end(&all.of[0], 0, 2);
  all.of[0].config.token = "";
  open_end(&all, 0);
  assert_has(place_text(all.addresses[0], all.addresses[0], 0), "127.0.0.1");
  assert_string_equal(place_text(all.addresses[0], all.addresses[0], 1), "");
  memcpy(all.addresses[1], all.addresses[0], MS_TRANSPORT_ADDRESS);
  all.addresses[1][8] ^= 1; /* another machine */
  assert_fails(ms_transport_tcp.connect(all.of[0].endpoint, 1, &peer, all.addresses[1]), MS_EINVAL,
               "rank 1 | another host | MOONSHARD_TOKEN");
  all.of[1].endpoint = NULL;
  close_ends(&all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      SET(H4_an_interface_is_chosen_by_name_address_or_prefix),
      SET(H4_ranks_meet_over_ipv6),
      SET(H4_an_unknown_interface_is_named_with_those_that_are_there),
      SET(H4_ports_come_from_the_range),
      SET(H4_places_are_tried_in_order),
      SET(H4_a_place_that_is_silent_is_left),
      SET(H4_another_machine_gets_no_loopback_and_not_its_own_addresses),
      SET(H6_addresses_that_no_transport_made_are_refused),
      SET(H6_hosts_without_a_token_are_not_connected),
  };
  return cmocka_run_group_tests_name("transport, addresses", tests, NULL, NULL);
}
