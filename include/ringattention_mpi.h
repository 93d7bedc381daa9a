/* A comm over an MPI communicator that the caller has made. Link with libringattention_openmpi or libringattention_mpich, the one that
 * fits the MPI in use. */
#ifndef RINGATTENTION_MPI_H
#define RINGATTENTION_MPI_H

#include <mpi.h>

#include "ringattention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The communicator is duplicated; ranks are those of `mpi_comm`, so that several rings can live in one job. MPI must be initialised with
 * at least MPI_THREAD_FUNNELED; calls on the comm must come from the thread that initialised MPI. Collective over mpi_comm.
 * After a failure the duplicate is leaked on purpose: freeing it would wait for the lost rank.
 * Errors: ERR_INVALID, ERR_UNSUPPORTED (thread level), ERR_MEMORY, ERR_LINK. */
RA_API ra_status ra_comm_create_mpi(MPI_Comm mpi_comm, const ra_comm_options *options, ra_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
