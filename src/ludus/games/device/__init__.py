"""Games whose rules are tensor operations, so that their tables can live on a GPU."""
