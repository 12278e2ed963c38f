"""Games in processes of their own: what they do there costs a match at most, never the training."""
