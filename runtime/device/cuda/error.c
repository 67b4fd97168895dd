/* error.c - passes errors and notes to the engine that loaded the library.
 *
 * The library has no error record of its own: errors and notes of its code and kernels go to the engine's.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/number.h"
#include "device/cuda/cuda.h"

static const ms_device_host *engine;

void ms_cuda_report_to(const ms_device_host *host) { engine = host; }

int ms_error_raise(int code, const char *file, int line, const char *format, ...) {
  char message[2048];
  va_list args;
  va_start(args, format);
  ms_format_list(message, sizeof message, format, args);
  va_end(args);
  return engine->raise(code, file, line, message);
}

void ms_note(const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  ms_format_list(text, sizeof text, format, args);
  va_end(args);
  engine->note(text);
}

int ms_cuda_check(cudaError_t error, const char *call, const char *file, int line) {
  if (error == cudaSuccess) return MS_OK;
  ms_cuda_ignore(cudaGetLastError()); /* clears a recoverable error, so that it is not reported twice */
  int code = error == cudaErrorMemoryAllocation ? MS_ENOMEM : MS_EDEVICE;
  return ms_error_raise(code, file, line, "%.*s: %s (%s)", (int)strcspn(call, "("), call, cudaGetErrorString(error),
                        cudaGetErrorName(error));
}
