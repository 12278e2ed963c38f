"""The command line: one file per command."""

import os

# Before numpy is loaded: its small equations are solved no faster by many threads, which take the cores from
# a training that goes on beside `ludus watch`.
if not {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys():
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
