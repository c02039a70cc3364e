"""Helpers that know neither energy nor training."""
