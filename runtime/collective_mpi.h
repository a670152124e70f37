/* runtime/collective_mpi.h - the one symbol of the modules zinf-mpi-*.so, which are built against
 * an MPI library each and loaded when a run has several ranks (ranks.c), so that zinf-run itself
 * needs no MPI.
 */
#ifndef ZINF_RUNTIME_COLLECTIVE_MPI_H
#define ZINF_RUNTIME_COLLECTIVE_MPI_H

#include "runtime/collective.h"

#define ZINF_MPI_OPEN_NAME "zinf_collective_mpi_open"

/* MPI_Init_thread and the table for it. Once a process. */
zinf_status zinf_collective_mpi_open(zinf_collective *ret_collective, zinf_error *err);
typedef zinf_status zinf_collective_open_function(zinf_collective *ret_collective,
                                                  zinf_error *err);

#endif
