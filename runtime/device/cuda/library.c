/* library.c - the only exported symbol of libmoonshard_cuda.so: the function table of CUDA devices, for the engine that
 * loads the library. */
#include "device/cuda/cuda.h"

static int open_device(int local_rank, int nccl, int carveout, ms_device **device) {
  MS_TRY(ms_cuda_open(local_rank, nccl, carveout, device));
  (*device)->api = &ms_cuda_api;
  return MS_OK;
}

const ms_device_api ms_cuda_api = {
    .version = MS_DEVICE_VERSION,
    .kind = MS_DEVICE_CUDA,
    .name = "cuda",
    .capabilities = MS_DEVICE_CUDA_CAPABILITIES,
    .kernel = ms_cuda_kernel,
    .open = open_device,
    .close = ms_cuda_close,
    .allocate = ms_cuda_allocate,
    .release = ms_cuda_release,
    .read = ms_cuda_read,
    .write = ms_cuda_write,
    .attach = ms_cuda_attach,
    .pin = ms_cuda_pin,
    .unpin = ms_cuda_unpin,
    .stream_open = ms_cuda_stream_open,
    .stream_close = ms_cuda_stream_close,
    .event_open = ms_cuda_event_open,
    .event_close = ms_cuda_event_close,
    .record = ms_cuda_record,
    .wait = ms_cuda_wait,
    .query = ms_cuda_query,
    .elapsed = ms_cuda_elapsed,
    .copy_in = ms_cuda_copy_in,
    .copy_out = ms_cuda_copy_out,
    .copy = ms_cuda_copy_within,
    .move = ms_cuda_move_on,
    .usage = ms_cuda_usage,
    .place = ms_cuda_place,
    .allocations = ms_cuda_allocations,
    .mark = ms_cuda_mark_on,
    .capture_begin = ms_cuda_capture_begin,
    .capture_end = ms_cuda_capture_end,
    .graph_run = ms_cuda_graph_run,
    .graph_close = ms_cuda_graph_close,
    .comm_id = ms_cuda_comm_id,
    .comm_open = ms_cuda_comm_open,
    .comm_split = ms_cuda_comm_split,
    .comm_ready = ms_cuda_comm_ready,
    .window_open = ms_cuda_window_open,
    .window_close = ms_cuda_window_close,
    .collective = ms_cuda_collective,
    .comm_abort = ms_cuda_comm_abort,
    .comm_close = ms_cuda_comm_close,
    .count = ms_cuda_count,
    .describe = ms_cuda_describe,
    .check = ms_cuda_check_gpu,
    .library = ms_cuda_library,
};

__attribute__((visibility("default"))) const ms_device_api *ms_device_table(const ms_device_host *given) {
  if (given->version != MS_DEVICE_VERSION) return NULL;
  ms_cuda_report_to(given);
  return &ms_cuda_api;
}
