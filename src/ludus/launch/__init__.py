"""Jobs for other people's schedulers, and plain hosts: only texts and programs that are started, no Ray."""
