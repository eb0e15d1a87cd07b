"""What `accel.selfcheck` computes: one file per kind of backend, one line of its table per group of cases."""
