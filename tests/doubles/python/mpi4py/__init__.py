"""A test double of the parts of mpi4py that a rank under mpirun and the acceptance kit use."""
