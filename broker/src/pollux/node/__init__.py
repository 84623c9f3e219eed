"""One life of one node id: which policy it waits for, and what this version provides of it."""
