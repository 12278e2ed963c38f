"""Jobs for Slurm, Kubernetes and plain hosts. This room writes scripts and starts programs; it does not import Ray."""
