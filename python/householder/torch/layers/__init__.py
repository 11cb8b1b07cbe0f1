"""The layers of ``householder.torch``. Import them from there."""
