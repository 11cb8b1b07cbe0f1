"""The paper's experiments on a well-kept training library: ``householder train TASK``."""
