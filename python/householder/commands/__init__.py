"""What ``householder info`` and ``householder bench`` do; ``householder.experiments.cli`` lists all commands."""
