"""Lesson 2: where drafters come from."""
