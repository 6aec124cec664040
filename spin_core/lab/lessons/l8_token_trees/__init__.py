"""Lesson 8: token trees."""
