# The part of the transport mpi that is built with an MPI's headers, and the emulated MPI of the tests, which needs none.
# Part of build.mk.
#
# MPICC is the compiler wrapper of the site's MPI: mpicc, mpiicc, or cc on a Cray. Without one the library is not built,
# and no rule needs it.

MPICC ?= mpicc
MPI := $(shell command -v $(MPICC))
MPI_LIBRARY := $(OUT)/libmoonshard_mpi.so
MPI_EMULATED := $(OUT)/tests/libmoonshard_mpi_emulated.so

.PHONY: mpi
mpi: $(if $(MPI),$(MPI_LIBRARY))
	@$(if $(MPI),:,echo "no $(if $(MPICC),$(MPICC),MPICC) on the PATH" >&2; exit 1)
tests: $(MPI_EMULATED)

# The wrappers of Open MPI and MPICH call the compiler that they were built with unless these variables name another.
$(MPI_LIBRARY): runtime/comm/transport/mpi/library.c runtime/comm/transport/mpi/library.h $(OUT)/mpi.list
	@mkdir -p $(@D)
	@echo "mpicc $<"
	@OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(OWN_CFLAGS) $(CPPFLAGS) $(CFLAGS) -shared -Wl,-soname,$(@F) \
	  $(NO_UNDEFINED_$(CONFIG)) $(LDFLAGS) $< -o $@

$(MPI_EMULATED): $(OUT)/obj/tests/emulated_mpi/emulated_mpi.o
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CC) -shared -Wl,-soname,$(@F) $(NO_UNDEFINED_$(CONFIG)) $(CONFIG_$(CONFIG)) $^ -o $@
