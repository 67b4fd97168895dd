/* moonshard.h - the public header of Moonshard, and its manual.
 *
 * Moonshard trains models whose parameters, gradients and optimizer state are sharded over a mesh of devices. A
 * program makes its calls in this order:
 *
 *   ms_world_join        joins this process to the other ranks (a world of one rank if nothing launched it)
 *   ms_mesh_new          arranges the ranks in named dimensions, e.g. replicate=2 x shard=2
 *   ms_model_*           declares parameters (name, shape, initial distribution) and the units that gather them
 *   ms_model_shard       decides which part of each parameter this rank owns
 *   ms_graph_*           records the computation, op by op, down to a scalar loss
 *   ms_plan_compile      compiles the whole step to a static, verified list of instructions; needs no device
 *   ms_state_new         allocates and initialises this rank's parameters, gradients and optimizer state
 *   ms_exec_new          binds the plan to the state
 *   ms_exec_run          runs a phase: first, next, last, norm, update, outer or evaluate
 *
 * The parts, in reading order. Include only this file, which includes them all:
 *
 *   moonshard/base.h      status and errors, element types, devices
 *   moonshard/settings.h  the settings of units, parameters, optimizers and plans
 *   moonshard/world.h     world and its ranks, signals, mesh
 *   moonshard/model.h     rules, parameters and units, ops, graph
 *   moonshard/plan.h      plan: compiling, costs
 *   moonshard/price.h     clusters, and what a plan takes on them
 *   moonshard/exec.h      state, execution, profiles, parameters
 *   moonshard/files.h     safetensors, tokens, tokenizers, checkpoints
 *
 * Conventions. A function that can fail returns an int status, enum ms_status, where MS_OK is 0; on failure it leaves
 * a record that ms_error_message() reads. Outputs are the last arguments. Parameter names are dotted
 * ("layers.3.attn.wq.weight"). Shapes are in elements, row-major, outermost dimension first. Bytes, and counts of
 * elements, are int64_t. "[n]" in a comment is the length of an array.
 *
 * Verbs. Objects are made by ..._new, files opened by ..._open, and a world is joined; ms_free ends all of them. A file
 * that is written is created and finished. ..._set_... stores a setting, a noun returns a value (ms_op_count),
 * ..._describe fills a struct about an object or one item of a list, and ..._read and ..._write copy data between the
 * caller's memory and a file or a state.
 *
 * Config structs. Call ms_config_default("ms_plan_config", &config, sizeof config) before you set fields. It stores
 * that size in the first field, so that a program works with a newer library: fields that the program does not know get
 * their defaults. With an older library it works as long as it leaves fields that the library does not know at their
 * defaults; other values are MS_EUNSUPPORTED. A struct that was not initialised is MS_EINVAL.
 *
 * Other structs. A struct that the library fills, and one without struct_size that it reads, go with their size:
 * ms_mesh_describe(mesh, &info, sizeof info). The library fills as many fields as the program knows, and zeros those
 * that it does not know itself; of what it reads, fields that the program does not know have their defaults, or are 0.
 * So programs work with newer and older libraries here, too. The size is also the distance between the structs of a
 * list. A list that is filled gets as many as there is room for; the call says how many there are in all. A struct
 * inside another one has no size of its own and never grows. Texts and lists that a field points to belong to the
 * object that was described, and stay valid as long as it does.
 *
 * Handles. Handles can be released in any order, and more than once. An object keeps the objects that it was made from
 * (a plan keeps its model). Some objects work on another one: an exec and a save on their state; states, profiles and
 * saves on their world. Once that one is released, they can only be released, too. Any other call with them is
 * MS_EINVAL, and so is a call with a handle that is NULL, was released, or is of another kind. Functions that return no
 * status leave the record as well and return 0, NULL or "", or -1 where 0 is a valid answer. A NULL pointer and a
 * number out of range are MS_EINVAL, unless the function's comment allows them.
 *
 * Threads. Only one thread at a time may use a handle, or handles that work with each other. Different threads may use
 * unrelated handles at once. Errors are recorded per thread. All ranks of the world, or of the model's mesh, must call
 * the functions marked "Collective", in the same order, with one thread per rank at a time. These wait for other ranks,
 * at most for the timeout (ms_world_config.timeout; MS_ETIMEOUT). They return early if another rank dies or gives up
 * (MS_EPEER), and after Ctrl-C (MS_EINTERRUPT) if the program has called ms_interrupt_install. The timeout bounds
 * waiting, not computing. ms_token_reader_take and ms_token_reader_discard, which wait for the reader's thread, and
 * ms_save_wait take a deadline of their own. All other functions wait only for the disk. Kernels run on the calling
 * thread and on the engine's own threads (ms_plan_config.threads). No call changes the OpenMP settings of the calling
 * thread (omp_set_num_threads). Only ms_interrupt_install and ms_world_catch_termination install signal handlers.
 *
 * A complete program. It trains a small network, sharded over all ranks that a launcher starts (or on one), and checks
 * every status:
 *
 *   #include <moonshard.h>
 *   #include <stdio.h>
 *   #include <string.h>
 *   #define TRY(call) do { if ((call) != MS_OK) goto end; } while (0)
 *
 *   int main(void) {
 *     static const float x[4][3] = {{0, 0, 1}, {0, 1, 1}, {1, 0, 1}, {1, 1, 1}};
 *     static const int32_t y[4] = {0, 1, 1, 1}; static const int all_ranks[1] = {-1};
 *     static const int64_t x_dims[2] = {4, 3}, y_dims[1] = {4}, w_dims[2] = {2, 3};
 *     ms_world *world = NULL; ms_mesh *mesh = NULL; ms_model *model = NULL; ms_graph *graph = NULL;
 *     ms_plan *plan = NULL; ms_state *state = NULL; ms_exec *exec = NULL;
 *     ms_world_info all; ms_unit_config unit; ms_param_config param; ms_model_dims dims; ms_plan_config config;
 *     ms_step_inputs step; ms_step_outputs result = {0}; int u, w, in[2], logits[2], loss[3];
 *     TRY(ms_world_join(NULL, &world)); TRY(ms_world_describe(world, &all, sizeof all));
 *     TRY(ms_mesh_new(MS_DEVICE_CPU, 1, all_ranks, NULL, all.size, 0, NULL, &mesh));
 *     TRY(ms_config_default("ms_unit_config", &unit, sizeof unit));
 *     TRY(ms_config_default("ms_param_config", &param, sizeof param));
 *     TRY(ms_model_new(7, &model)); TRY(ms_model_add_unit(model, "root", &unit, &u));
 *     TRY(ms_model_add_param(model, u, "fc.weight", 2, w_dims, &param, &w));
 *     TRY(ms_config_default("ms_model_dims", &dims, sizeof dims)); dims.shard = 0;
 *     TRY(ms_model_shard(model, mesh, all.rank, &dims)); TRY(ms_graph_new(model, &graph));
 *     TRY(ms_graph_input(graph, "x", MS_F32, 2, x_dims, -1, &in[0])); TRY(ms_graph_param(graph, w, &in[1]));
 *     TRY(ms_graph_op(graph, "matmul", 2, in, "trans_b=1", &logits[0]));
 *     TRY(ms_graph_input(graph, "y", MS_I32, 1, y_dims, -1, &logits[1]));
 *     TRY(ms_graph_op(graph, "cross_entropy", 2, logits, NULL, loss)); TRY(ms_graph_set_loss(graph, loss[0], -1));
 *     TRY(ms_config_default("ms_plan_config", &config, sizeof config)); TRY(ms_plan_compile(graph, &config, &plan));
 *     TRY(ms_state_new(world, model, &config, 1, &state)); TRY(ms_exec_new(state, plan, &exec));
 *     memcpy(ms_exec_input(exec, "x"), x, sizeof x), memcpy(ms_exec_input(exec, "y"), y, sizeof y);
 *     TRY(ms_config_default("ms_step_inputs", &step, sizeof step));
 *     for (step.lr = 0.1; step.step <= 200; step.step++) {
 *       TRY(ms_exec_run(exec, MS_PHASE_FIRST, &step, NULL, 0));
 *       TRY(ms_exec_run(exec, MS_PHASE_NORM, &step, &result, sizeof result));
 *       TRY(ms_exec_run(exec, MS_PHASE_UPDATE, &step, NULL, 0));
 *     }
 *     if (all.rank == 0) printf("loss %.4f on %d ranks\n", result.loss, all.size);
 *     TRY(ms_world_finish(world));
 *   end:
 *     if (ms_error_code()) fprintf(stderr, "%s\n", ms_error_message());
 *     ms_free(exec), ms_free(state), ms_free(plan), ms_free(graph), ms_free(model), ms_free(mesh), ms_free(world);
 *     return ms_error_code() != MS_OK || result.loss > 0.1;
 *   }
 */
#ifndef MOONSHARD_H
#define MOONSHARD_H

#include <moonshard/base.h>
#include <moonshard/settings.h>
#include <moonshard/world.h>
#include <moonshard/model.h>
#include <moonshard/plan.h>
#include <moonshard/price.h>
#include <moonshard/exec.h>
#include <moonshard/files.h>

#endif
