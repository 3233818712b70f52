"""What several training commands share: their options, and the version of the prompts that data and weights are for."""
