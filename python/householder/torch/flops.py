"""Formulas for ``torch.utils.flop_counter.FlopCounterMode``: import this module, and it counts our operators.

This is a separate module because the counter imports Triton if it is installed. A product of ``p x q`` and ``q x r``
counts ``2 p q r``, as in torch. A triangular solve counts half of the product with the inverse. The delta rule has no
formula.

Examples
--------
>>> import torch
>>> import householder.torch as ht
>>> import householder.torch.flops
>>> from torch.utils.flop_counter import FlopCounterMode
>>> with FlopCounterMode(display=False) as counter:
...     _ = ht.apply(torch.randn(64, 4), torch.randn(100, 64), method="wy")
>>> counter.get_total_flops()  # two products with 64 x 4, one with 4 x 4, one triangular solve
106048
"""

from torch.utils.flop_counter import register_flop_formula

from householder.torch._ops import OPERATORS

for _operator in OPERATORS:
    for _target, _formula in _operator.kernels.flop_formulas().items():
        register_flop_formula(_target, get_raw=True)(_formula)
