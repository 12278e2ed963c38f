"""The fault matrix: every fault is injected many times at random moments, and what a run folder holds is checked by
code that shares nothing with the product. `make test-faults N=100` runs it; docs/faults.md says what it promises."""
