"""Lesson 5: the pipeline."""
