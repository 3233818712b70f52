"""The graph's nodes, one function each, by what they do. A node's return type names the nodes that may come next."""
