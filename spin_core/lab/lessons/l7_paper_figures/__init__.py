"""Lesson 7: the paper's figures."""
