"""Lesson 1: speculative decoding from first principles."""
