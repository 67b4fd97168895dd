/* controller_output.c - the output of a run on several hosts, which its readers may take slowly or not at all.
 *
 * A run waits for a slow reader, as any program does, but not once its end was asked for: the end of a host comes after
 * its output, so without a reader the run would never end.
 */
#include <poll.h>

#include "base/clock.h"
#include "host/hosts/controller.h"
#include "host/launcher/launch.h"

/* Seconds that a reader may take nothing once the end was asked for. */
static const double PATIENCE = 1.0;

static size_t waiting(const ms_output_buffer *output) { return output->used - output->begin; }

static int must_end(const ms_controller *controller) { return controller->asked || *controller->why; }

int ms_controller_has_room(const ms_controller *controller) {
  return ms_output_buffer_has_room(&controller->output[0]) && ms_output_buffer_has_room(&controller->output[1]);
}

/* Returns the number of bytes that still wait. */
static size_t write_some(ms_controller *controller, int i) {
  ms_output_buffer *output = &controller->output[i];
  const size_t before = waiting(output), left = ms_output_buffer_flush(output);
  const double now = ms_clock();
  if (!left || left < before || !must_end(controller)) controller->output_moved_at[i] = now;
  if (now < controller->output_moved_at[i] + ms_wait_scale * PATIENCE) return left;
  ms_output_buffer_discard(output);
  controller->unread |= controller->asked != 0;
  return 0;
}

size_t ms_controller_output_pass(ms_controller *controller) {
  return write_some(controller, 0) + write_some(controller, 1);
}

void ms_controller_output_wait(const ms_controller *controller) {
  struct pollfd wanted[3] = {{.fd = controller->signals, .events = POLLIN}};
  for (int i = 0; i < 2; i++) {
    const ms_output_buffer *output = &controller->output[i];
    wanted[i + 1] = (struct pollfd){.fd = waiting(output) ? output->writes : -1, .events = POLLOUT};
  }
  poll(wanted, 3, 100);
}

void ms_controller_output_report(ms_controller *controller, int *exit_status) {
  char lost[256];
  ms_output_buffer_tell_lost(controller->output, lost, sizeof lost);
  if (*exit_status || (!*lost && !controller->unread)) return;
  *exit_status = *lost ? MS_STATUS_FAILED_RUN : 128 + controller->asked;
  ms_output_buffer_say(&controller->output[1], "moonshard: %s\n", *lost ? lost : MS_NOT_ALL_READ);
  ms_output_buffer_flush(&controller->output[1]);
}
