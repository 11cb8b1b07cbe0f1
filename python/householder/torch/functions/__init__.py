"""The functions of ``householder.torch``, on tensors. Import them from there."""
