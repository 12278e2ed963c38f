"""The local runtime: the same workers as processes, with slots and weights in shared memory."""
