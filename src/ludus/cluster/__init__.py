"""The cluster runtime: the local runtime's workers on the nodes of a Ray cluster. Inside a node slots and
weights stay in shared memory; between nodes they travel through Ray's object store."""
