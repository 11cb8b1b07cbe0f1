"""The CUDA backend: compact WY by matrix products of the array library, recurrences by kernels of ``cuda/``.

==================  =============================================================
``instances``       which kernels there are, and which one serves a shape
``kernels``         their compilation and launch
``verdicts``        which of them a device can use, each tried once
``trials``          the small problems on which they are tried
``library``         operations that NumPy, CuPy and torch name differently
``algebra``         compact WY in matrix products: applications and gradients of parameters
``factors``         the factors of compact WY, in one launch
``application``     applications, in one launch where matrices are many and small
``packing``         the positions of the rows of packed sequences
``recurrence``      sequences, forward and backward
``arrays``          the backend of CuPy arrays
``device``          CuPy and the devices it sees
``describe``        a description of the CUDA path on this machine
==================  =============================================================
"""

from householder._cuda.describe import describe as describe
from householder._cuda.recurrence import warm_up as warm_up
