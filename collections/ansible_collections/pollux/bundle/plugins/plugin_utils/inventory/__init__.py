"""The pure part of the topology filter: what an inventory means and what it is refused for."""
