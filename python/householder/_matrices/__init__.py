"""Matrices and their reflections: factors, frames, random and nearest matrices, LAPACK's format."""
