"""Lesson 3: selection."""
