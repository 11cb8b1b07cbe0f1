"""The mathematics once, in the array API standard: every derivative exists, no native code runs.

Forward mode, second derivatives, devices without kernels and exported programs compute by it, and it documents what
the operators compute. Every function takes the array library first, and is differentiated by that library. Only the
gradients in closed form (``delta_gradients``) are not.

Leading axes ``*c`` are independent problems: ``u (*c, n, m)``, ``tau (*c, m)``.
"""
