"""Lesson 4: request decomposition."""
