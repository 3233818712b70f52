"""The laboratory that makes weights: training data, objectives, loops and fits. The product never imports it."""
