"""Services: methods of a plain class that other processes call by name, in every runtime."""
