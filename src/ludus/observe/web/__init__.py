"""Pages in a browser: the dashboard of a run, what keeps strangers out of it, and its static files."""
