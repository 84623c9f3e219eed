"""Who may serve. What all policies share is here, each policy is a package: shared_store, replication."""
