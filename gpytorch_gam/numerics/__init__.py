"""Pure functions of tensors: structured matrices, fits of precisions, quadrature, and guards around torch."""
