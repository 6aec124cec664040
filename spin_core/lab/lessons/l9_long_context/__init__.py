"""Lesson 9: long contexts."""
