"""What an inventory means and what it is refused for: the pure part of the topology filter, in the filters' reach."""
