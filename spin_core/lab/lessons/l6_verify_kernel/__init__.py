"""Lesson 6: the verify kernel."""
